#!/usr/bin/python3
"""page_viewers.py PORT COUNT: so many viewers of the first model's page: each reads its history, and then hears events.

Says "viewing" once all hear them; ends with its input.
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


def main():
    port, count = int(sys.argv[1]), int(sys.argv[2])
    name = urllib.parse.quote(first_model(port))
    streams = []
    for _ in range(count):
        connection, answer = ask(port, f"/api/history?model={name}&pixels=800")
        answer.read()
        connection.close()
        connection, answer = ask(port, f"/api/events?model={name}")
        if answer.status != 200:
            sys.exit(f"page_viewers: {answer.status} {answer.read()[:200]}")
        streams.append(connection.sock or answer.fp.raw._sock)
    print("viewing", flush=True)
    while True:
        ready, _, _ = select.select([sys.stdin, *streams], [], [])
        for stream in ready:
            if stream is sys.stdin or not stream.recv(1 << 20):
                sys.exit(0 if stream is sys.stdin else "page_viewers: a stream has ended")


if __name__ == "__main__":
    main()
