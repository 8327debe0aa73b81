#!/usr/bin/python3
"""h2_server.py CASE: a gRPC server of one bad habit, on python3-h2. It answers each request with the bytes of it.

The cases are those of gRPC's negative HTTP/2 interoperability tests, and some that a proxy in between brings:

    goaway            GOAWAY after the first answer, on each connection
    goaway_unseen     GOAWAY for the first request of the first connection: the server says that it has not looked at it
    rst_after_header  RST_STREAM after the head of the answer
    rst_during_data   RST_STREAM in the middle of the answer's message
    rst_after_data    RST_STREAM after the answer's message, in place of the trailers
    refused           RST_STREAM REFUSED_STREAM for the first request
    ping              PINGs before and after each piece of the answer, all of which must be answered
    max_streams       one stream at a time; more of them at once end the process with 1
    lost              the connection is closed in the middle of the answer
    http_503          an HTTP answer, as of a proxy without a back end
    no_status         an answer that ends without grpc-status

Prints "port N", and ends with SIGTERM: exit code 0, or 1 if the client did what it may not do.
"""
import os
import signal
import socket
import sys
import threading

try:
    import h2.config
    import h2.connection
    import h2.errors
    import h2.events
    import h2.settings
except ImportError as error:
    print("SKIPPED: %s (package python3-h2)" % error)
    sys.exit(77)

CASE = sys.argv[1]
HEAD = [(":status", "200"), ("content-type", "application/grpc")]
STATUS = [("grpc-status", "0")]
faults = []
connections = 0


class Connection:
    def __init__(self, sock, number):
        self.sock, self.number = sock, number
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.bodies = {}  # of the requests under way
        self.requests = 0
        self.pings = 0    # that were sent and are not answered yet
        self.open = True

    def flush(self):
        self.sock.sendall(self.h2.data_to_send())

    def run(self):
        self.h2.initiate_connection()
        if CASE == "max_streams":
            self.h2.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        self.flush()
        while self.open:
            data = self.sock.recv(65536)
            if not data:
                break
            for event in self.h2.receive_data(data):
                self.take(event)
            if self.open:
                self.flush()
        self.sock.close()
        if self.pings != 0:
            faults.append("%d PINGs were not answered" % self.pings)

    def take(self, event):
        if isinstance(event, h2.events.RequestReceived):
            self.bodies[event.stream_id] = b""
            if CASE == "max_streams" and len(self.bodies) > 1 and self.requests > 0:
                faults.append("two streams at once")
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.requests += 1
            self.answer(event.stream_id)
            self.bodies.pop(event.stream_id, None)
        elif isinstance(event, h2.events.PingAckReceived):
            self.pings -= 1
        elif isinstance(event, h2.events.StreamReset):
            self.bodies.pop(event.stream_id, None)

    def ping(self):
        if CASE == "ping":
            self.pings += 1
            self.h2.ping(os.urandom(8))

    def answer(self, stream):
        first = self.requests == 1 and self.number == 1
        body = self.bodies[stream]
        if CASE == "goaway_unseen" and first:
            self.h2.close_connection(last_stream_id=0)
            self.flush()
            self.open = False
            return
        if CASE == "refused" and first:
            self.h2.reset_stream(stream, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        if CASE == "http_503":
            self.h2.send_headers(stream, [(":status", "503"), ("content-type", "text/html")])
            self.h2.send_data(stream, b"no healthy upstream", end_stream=True)
            return
        self.ping()
        self.h2.send_headers(stream, HEAD)
        if CASE == "rst_after_header":
            self.h2.reset_stream(stream, h2.errors.ErrorCodes.NO_ERROR)
            return
        half = len(body) // 2
        self.h2.send_data(stream, body[:half])
        if CASE == "rst_during_data":
            self.h2.reset_stream(stream, h2.errors.ErrorCodes.NO_ERROR)
            return
        if CASE == "lost":
            self.flush()
            self.open = False
            return
        self.ping()
        self.h2.send_data(stream, body[half:], end_stream=CASE == "no_status")
        if CASE == "rst_after_data":
            self.h2.reset_stream(stream, h2.errors.ErrorCodes.NO_ERROR)
            return
        if CASE != "no_status":
            self.h2.send_headers(stream, STATUS, end_stream=True)
        self.ping()
        if CASE == "goaway":
            # h2 takes nothing after close_connection; what is under way is answered above, since requests come one by one.
            self.h2.close_connection(last_stream_id=stream)


def serve(sock):
    global connections
    while True:
        peer, _ = sock.accept()
        connections += 1
        connection = Connection(peer, connections)
        threading.Thread(target=guard, args=(connection,), daemon=True).start()


def guard(connection):
    try:
        connection.run()
    except OSError:
        pass  # the client went away
    except Exception as error:  # what h2 calls a fault of the client
        faults.append("%s: %s" % (type(error).__name__, error))


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    print("port %d" % listener.getsockname()[1], flush=True)
    signal.sigwait([signal.SIGTERM])
    for fault in faults:
        print("h2_server %s: %s" % (CASE, fault), file=sys.stderr)
    sys.exit(1 if faults else 0)


main()
