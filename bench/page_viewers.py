#!/usr/bin/python3
"""page_viewers.py PORT: viewers of the first model's page: each one reads the history, and then receives events.

Each line on stdin is the number of viewers from then on; it prints "viewing" once all of them have received something.
It ends when stdin ends.
"""
import http.client
import json
import select
import sys
import time
import urllib.parse

START_S = 60


def ask(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
    connection.request("GET", path)
    return connection, connection.getresponse()


def first_model(port):
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        connection, answer = ask(port, "/api/status")
        models = json.load(answer)["models"]
        connection.close()
        if models and models[0]["state"] == "running":
            return models[0]["name"]
        time.sleep(0.1)
    sys.exit("page_viewers: no model runs")


def viewer(port, name):
    """Opens a viewer's stream of events; returns the response once something of it was read."""
    connection, answer = ask(port, f"/api/history?model={name}&pixels=800")
    answer.read()
    connection.close()
    _, answer = ask(port, f"/api/events?model={name}")
    if answer.status != 200 or not answer.read1():
        sys.exit(f"page_viewers: {answer.status} {answer.read()[:200]}")
    return answer


def main():
    port = int(sys.argv[1])
    name = urllib.parse.quote(first_model(port))
    streams = []
    while True:
        ready, _, _ = select.select([sys.stdin, *streams], [], [])
        for stream in ready:
            if stream is not sys.stdin and not stream.read1():
                sys.exit("page_viewers: a stream has ended")
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                sys.exit(0)
            for stream in streams:
                stream.close()
            streams = [viewer(port, name) for _ in range(int(line))]
            print("viewing", flush=True)


if __name__ == "__main__":
    main()
