#!/usr/bin/python3
"""The HTTP port: what /metrics, /livez and /readyz say, and what clients of it cannot do to the server.

    test_server_http.py BIN_DIR [NAME ...]
"""
import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import time

import ampd_testing
from ampd_testing import (Api, CALL_TIMEOUT_S, Code, ROOT, Server, common, eventually, grpc, refused, run,
                          start_and_fail)

METRICS_PORT = re.compile(r"metrics and health\" address=127\.0\.0\.1:(\d+)")
CONNECTIONS_MAX = 32  # HTTP_CONNECTIONS_MAX
TEXTS_MAX, FRESH_S = 4, 0.1  # HTTP_TEXTS_MAX, HTTP_FRESH_MS
REQUEST_S = 10        # HTTP_REQUEST_MS


def http_server(context, *options):
    """A server with a free port for HTTP, which is its `http_port`."""
    server = context.server("--metrics-listen", "127.0.0.1:0", *options)
    server.http_port = int(METRICS_PORT.search(server.log())[1])
    return server


def get(server, path, method="GET", body=None):
    """(status, headers, text)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=CALL_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def samples(server):
    """(name, labels as a frozenset of pairs) -> value, of a scrape that is not an older one."""
    status, headers, text = get(server, "/metrics")
    assert status == 200 and headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", (status, headers)
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r"([a-z_]+)(?:\{(.*)\})? (\S+)", line).groups()
        key = name, frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
        assert key not in found, f"twice: {line}"
        found[key] = float(value)
    return found


def value(found, name, **labels):
    return found[name, frozenset(labels.items())]


def call_count(found, name, method, **labels):
    """The sum of a gRPC metric over its other labels."""
    wanted = {("grpc_method", method), *labels.items()}
    return sum(number for (key, have), number in found.items() if key == name and wanted <= have)


# ---- what it says ----

def test_health_says_ok_and_unknown_pages_are_named(context):
    server = http_server(context)
    assert get(server, "/livez")[::2] == (200, "ok\n")
    assert get(server, "/readyz")[::2] == (200, "ok\n")
    status, headers, text = get(server, "/readyz?verbose")
    assert status == 200 and text.endswith("readyz check passed\n") and "[+]synced ok\n" in text, text
    assert headers["Cache-Control"] == "no-store"
    status, _, text = get(server, "/nothing")
    assert status == 404 and "/metrics" in text
    status, headers, text = get(server, "/readyz", "HEAD")
    assert (status, headers["Content-Length"], text) == (200, "3", "")
    for method, body in (("POST", b"x" * 100000), ("DELETE", None), ("PUT", b"")):
        status, headers, _ = get(server, "/livez", method, body)
        assert status == 405 and headers["Allow"] == "GET, HEAD", (method, status)
    assert server.terminate() == 0


def test_a_server_that_drains_is_alive_and_not_ready(context):
    server = http_server(context)
    # A connection that stays: it answers nothing, not even the PING of the drain.
    silent = socket.create_connection(("127.0.0.1", server.port), timeout=CALL_TIMEOUT_S)
    silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    assert silent.recv(9)
    Api(server.channel).Drain(grace_ms=20000)
    status, _, text = get(server, "/readyz")
    assert status == 503 and text.startswith("draining: "), (status, text)
    assert get(server, "/livez")[0] == 200
    status, _, text = get(server, "/readyz?verbose")
    assert status == 503 and "[-]running failed: draining" in text and text.endswith("readyz check failed\n"), text
    found = samples(server)
    assert (value(found, "ampd_ready"), value(found, "ampd_draining")) == (0, 1)
    silent.close()
    assert server.terminate() == 0


@contextlib.contextmanager
def shard_of_two(context, folder, k):
    folder.mkdir(exist_ok=True)
    log = folder / f"log-{k}"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [*ampd_testing.DIE_WITH_PARENT, context.bin_dir / "ampd", "--data-dir", folder / f"data-{k}", "--listen",
             f"unix:{folder}/s{k}", "--metrics-listen", "127.0.0.1:0", "--shard", str(k), "--peers",
             f"unix:{folder}/s0,unix:{folder}/s1"], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        match = eventually(lambda: METRICS_PORT.search(log.read_text()), "it says where it listens")
        process.http_port = int(match[1])
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_shard_whose_others_are_missing_is_not_ready(context):
    with shard_of_two(context, context.folder(), 0) as process:
        status, _, text = get(process, "/readyz")
        assert status == 503 and text.startswith("not synced: "), (status, text)
        found = samples(process)
        assert value(found, "ampd_shard_session_up", shard="1") == 0 and value(found, "ampd_shards") == 2


def test_ranks_are_missing_where_leases_are_known(context):
    """An alert asks each process: the shards that know of no worker are not to say that all are missing."""
    folder = context.folder()
    with shard_of_two(context, folder, 0) as first, shard_of_two(context, folder, 1) as second, \
            grpc.insecure_channel(f"unix:{folder}/s0") as channel:
        eventually(lambda: get(second, "/readyz")[0] == 200 and get(first, "/readyz")[0] == 200, "both are ready")
        ampd_testing.Api(channel).CreateModel(spec=ampd_testing.spec("m"))
        eventually(lambda: get(second, "/metrics")[2].count('model="m"') > 0, "shard 1 has the model")
        for process, missing in ((first, 1), (second, 0)):
            assert value(samples(process), "ampd_model_workers", model="m", state="missing") == missing


# ---- the numbers ----

def test_promtool_accepts_the_metrics(context):
    if shutil.which("promtool") is None:
        print("SKIPPED: test_server_http: no promtool (package prometheus)")
        return
    server = http_server(context)
    context.model("checked", server).worker().train({"w": [1.0] * 4})
    done = subprocess.run(["promtool", "check", "metrics"], input=get(server, "/metrics")[2], timeout=CALL_TIMEOUT_S,
                          encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and not done.stdout.strip(), done.stdout


def test_the_metrics_follow_a_model(context):
    server = http_server(context)
    test_model = context.model("followed", server, world_size=2, max_consecutive_overflows=1)
    both = test_model.workers(2)

    def step(values):
        for worker in both:
            worker.pull()
        return ampd_testing.together(both, {"w": values})

    step([1.0] * 4)
    step([float("inf")] + [0.0] * 3)
    asked = both[0].api.start("Checkpoint", model="followed")
    step([1.0] * 4)
    assert asked.result().checkpoint.step in (2, 3)
    kept = both[0].api.ListCheckpoints(model="followed").checkpoints  # one is of the values that were loaded
    time.sleep(0.2)  # a text may be a tenth of a second old
    found = samples(server)
    of = {"model": "followed"}
    for name, wanted in (("loss_scale", 512), ("epoch", 1), ("decided_step", 3), ("steps_attempted", 3),
                         ("steps_applied", 2), ("steps_skipped", 1), ("overflows", 1), ("consecutive_overflows", 0),
                         ("world_size", 2), ("version", 2), ("checkpoints", len(kept)), ("checkpoint_step", kept[0].step)):
        have = value(found, f"ampd_model_{name}", **of)
        assert have == wanted, f"{name} is {have}, not {wanted}"
    for verdict, wanted in (("applied", 2), ("skipped_overflow", 1), ("skipped_empty", 0)):
        assert value(found, "ampd_model_steps_total", verdict=verdict, **of) == wanted, verdict
    rows = list(both[0].api.ListScaleHistory(model="followed").rows)
    for part in ("apply", "pull", "wait", "push", "vote"):
        wanted = sum(getattr(row.times, f"{part}_us") for row in rows) / 1e6
        assert abs(value(found, "ampd_model_step_part_seconds_total", part=part, **of) - wanted) < 1e-6, part
    assert sum(row.times.wait_us for row in rows) > 0
    assert value(found, "ampd_model_state", state="running", **of) == 1
    assert value(found, "ampd_model_state", state="stalled", **of) == 0
    for state, wanted in (("live", 2), ("missing", 0), ("straggling", 0), ("nonfinite", 0), ("quarantined", 0)):
        assert value(found, "ampd_model_workers", state=state, **of) == wanted, state
    assert value(found, "ampd_model_checkpoint_bytes", **of) > 0
    assert value(found, "ampd_memory_counted_bytes") >= value(found, "ampd_model_memory_bytes", **of) > 0
    assert abs(value(found, "ampd_model_checkpoint_timestamp_seconds", **of) - time.time()) < 600
    assert value(found, "ampd_checkpoint_write_seconds_count") == len(kept)
    assert value(found, "ampd_checkpoint_written_bytes_total") > value(found, "ampd_model_checkpoint_bytes", **of)
    assert value(found, "ampd_store_commit_seconds_count") >= 4
    both[1].api.Leave(**both[1].identity())
    both[0].api.DeleteModel(model="followed", force=True)
    time.sleep(0.2)
    found = samples(server)
    assert not [key for key in found if ("model", "followed") in key[1]]
    assert value(found, "ampd_memory_counted_bytes") == 0


def test_a_rank_that_others_wait_for_is_named_everywhere(context):
    server = http_server(context)
    test_model = context.model("awaits", server, world_size=2)
    both = test_model.workers(2)
    for worker in both:
        worker.pull()
    assert test_model.status().waiting_for == ""
    pushed = both[0].start_push({"w": [1.0] * 4})
    sentence = eventually(lambda: test_model.status().waiting_for, "the status names the rank")
    assert re.fullmatch(r"rank 1 \(w1\) to push step 1, for \d+ s", sentence), sentence
    assert both[0].api.KeepAlive(**both[0].identity()).waiting_for.startswith("rank 1 (w1) to push step 1")
    time.sleep(0.2)  # a text may be a tenth of a second old
    found, of = samples(server), {"model": "awaits"}
    assert value(found, "ampd_model_awaited_rank", **of) == 1
    assert value(found, "ampd_model_open_step_seconds", **of) >= 10
    eventually(lambda: "step 1 waits for rank 1 (w1): others have waited for 10 s" in server.log(), "the log names it")
    shown = subprocess.run([context.bin_dir / "ampctl", "--endpoint", f"127.0.0.1:{server.port}", "status", "awaits"],
                           timeout=CALL_TIMEOUT_S, capture_output=True, encoding="utf-8", check=True).stdout
    assert "rank 1 (w1) to push step 1" in shown and "BLOCKS HERE" in shown, shown
    both[1].push({"w": [1.0] * 4})
    assert pushed.result().result.verdict == common.VERDICT_APPLIED and test_model.status().waiting_for == ""
    time.sleep(0.2)
    assert value(samples(server), "ampd_model_awaited_rank", **of) == -1


def test_calls_are_counted_under_the_names_of_etcd(context):
    server = http_server(context)
    test_model = context.model("counted", server)
    worker = test_model.worker()
    for _ in range(3):
        worker.train({"w": [1.0] * 4})
    refused(lambda: worker.api.GetModel(model="none"), Code.NOT_FOUND)
    time.sleep(0.2)
    found = samples(server)
    push = {"grpc_service": "ampd.v1.ParameterService", "grpc_method": "Push", "grpc_type": "client_stream"}
    assert value(found, "grpc_server_started_total", **push) == 3
    assert value(found, "grpc_server_handled_total", grpc_code="OK", **push) == 3
    assert value(found, "grpc_server_handled_total", grpc_code="Unavailable", **push) == 0
    assert value(found, "grpc_server_msg_received_total", **push) == 9  # header, block, trailer
    assert value(found, "grpc_server_msg_sent_total", **push) == 3
    assert value(found, "grpc_server_handling_seconds_count", **push) == 3
    assert value(found, "grpc_server_handling_seconds_bucket", le="+Inf", **push) == 3
    assert value(found, "grpc_server_handling_seconds_sum", **push) > 0
    assert call_count(found, "grpc_server_handled_total", "GetModel", grpc_code="NotFound") == 1
    assert value(found, "ampd_connections") >= 1 and value(found, "ampd_received_bytes_total") > 0
    for name in ("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "start_time_seconds",
                 "open_fds", "max_fds"):
        assert value(found, f"process_{name}") > 0, name
    assert abs(value(found, "process_start_time_seconds") - time.time()) < 600


def test_the_document_lists_every_metric(context):
    server = http_server(context)
    _, _, text = get(server, "/metrics")
    rows = re.findall(r"^\| `((?:ampd|grpc|process)_[a-z_]+)` \|(?: with (`--cluster`))?", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE)
    listed = {name for name, in_cluster in rows if not in_cluster}  # test_server_cluster.py looks at the others
    made = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    assert made == listed, f"not in docs/monitoring.md: {made - listed}; only there: {listed - made}"


def promtool(*arguments):
    """What promtool says about a file of deploy/prometheus; it is to be content."""
    done = subprocess.run(["promtool", *arguments], cwd=ROOT / "deploy" / "prometheus", timeout=CALL_TIMEOUT_S,
                          encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


def test_prometheus_accepts_the_configuration_and_the_rules_ask_for_metrics_that_there_are(context):
    server = http_server(context)
    rules = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    wanted = set(re.findall(r"\b(?:ampd_|grpc_server_)[a-z_]+", rules))
    made = set(re.findall(r"^# TYPE (\S+) ", get(server, "/metrics")[2], re.MULTILINE))
    missing = {name for name in wanted if name not in made and name.removesuffix("_bucket") not in made}
    assert wanted and not missing, missing
    if shutil.which("promtool") is None:
        print("SKIPPED: test_server_http: no promtool (package prometheus)")
        return
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "rules_test.yml")


def test_each_panel_of_the_dashboard_asks_for_metrics_that_there_are(context):
    server = http_server(context)
    made = set(re.findall(r"^# TYPE (\S+) ", get(server, "/metrics")[2], re.MULTILINE))
    board = json.loads((ROOT / "deploy" / "grafana" / "ampd.json").read_text())
    asked = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel["targets"]]
    asked += [(variable["name"], variable["query"]["query"]) for variable in board["templating"]["list"]
              if variable["type"] == "query"]
    assert len(asked) > 25
    for title, expression in asked:
        names = re.findall(r"\b(?:ampd|grpc_server|process)_[a-z_]+", expression)
        missing = {name for name in names if name not in made and name.removesuffix("_bucket") not in made}
        assert names and not missing, (title, expression, missing)
        # What is chosen at the top counts in every panel: of two servers with models of one name only one is looked at.
        chosen = expression.count('instance=~"$instance"')
        assert "label_values" in expression or chosen == len(names), (title, expression)
    if shutil.which("promtool") is None:
        print("SKIPPED: test_server_http: no promtool (package prometheus) to read the expressions")
        return
    rules = {"groups": [{"name": "board", "rules": [
        {"record": f"board:{at}", "expr": re.sub(r"\$__rate_interval|\$__interval", "1m", expression)}
        for at, (_, expression) in enumerate(asked) if "label_values" not in expression]}]}
    path = context.work / "board.yml"
    path.write_text(json.dumps(rules))  # JSON is YAML, too
    promtool("check", "rules", path)


def test_the_dashboard_says_that_a_cluster_with_a_standby_serves(context):
    if shutil.which("promtool") is None:
        print("SKIPPED: test_server_http: no promtool (package prometheus) to read the expressions")
        return
    board = json.loads((ROOT / "deploy" / "grafana" / "ampd.json").read_text())
    expression, = (panel["targets"][0]["expr"] for panel in board["panels"] if panel["title"] == "Serving")
    processes = (("a", 1, 0), ("b", 1, 1), ("c", 0, -1))  # its name, whether it is ready, its shard
    series = [{"series": f'{name}{{instance="{process}"}}', "values": str(value)}
              for process, ready, shard in processes for name, value in (("ampd_ready", ready), ("ampd_shard", shard))]
    path = context.work / "board_test.yml"
    path.write_text(json.dumps({"tests": [{"input_series": series, "promql_expr_test": [
        {"expr": expression.replace("$instance", instance), "eval_time": "0s", "exp_samples": [{"labels": "{}", "value": 1}]}
        for instance in ("a", "a|b|c")]}]}))
    promtool("test", "rules", path)


def test_the_dashboard_counts_no_ranks_of_a_model_that_is_done(context):
    if shutil.which("promtool") is None:
        print("SKIPPED: test_server_http: no promtool (package prometheus) to read the expressions")
        return
    board = json.loads((ROOT / "deploy" / "grafana" / "ampd.json").read_text())
    expression, = (panel["targets"][0]["expr"] for panel in board["panels"] if panel["title"] == "Ranks missing")
    models = (("over", 4, 1), ("runs", 2, 0))  # its name, how many ranks are missing, whether it is done
    series = [{"series": f'{name}{{instance="a", model="{model}", state="{state}"}}', "values": str(value)}
              for model, missing, done in models
              for name, state, value in (("ampd_model_workers", "missing", missing), ("ampd_model_state", "done", done))]
    path = context.work / "board_test.yml"
    path.write_text(json.dumps({"tests": [{"input_series": series, "promql_expr_test": [
        {"expr": expression.replace("$instance", ".*").replace("$model", chosen), "eval_time": "0s",
         "exp_samples": [{"labels": "{}", "value": value}]} for chosen, value in ((".*", 2), ("over", 0))]}]}))
    promtool("test", "rules", path)


# ---- where it listens ----

def test_a_client_of_grpc_that_asks_this_port_is_told_to_give_the_other_one(context):
    server = http_server(context)
    done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", f"127.0.0.1:{server.http_port}", "status"], timeout=60,
                          capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 64 + 14 and "speaks HTTP/1: give its gRPC port instead" in done.stderr, (done.returncode, done.stderr)


def test_a_port_that_is_used_ends_the_start_only_if_it_was_asked_for(context):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--listen", "127.0.0.1:0",
                                     "--metrics-listen", address)
        assert code == 1 and address in lines[-1] and "--metrics-listen" in lines[-1], (code, lines)
    for text in ("here", "127.0.0.1", "127.0.0.1:70000", "unix:/x"):
        code, lines = start_and_fail(context.bin_dir, "--check-config", "--data-dir", context.folder(), "--listen",
                                     "127.0.0.1:0", "--metrics-listen", text)
        assert code == 2 and "--metrics-listen" in lines[-1], (text, code, lines)
    for text in ("none", ""):
        server = context.server("--metrics-listen", text)
        assert "metrics and health" not in server.log()
        assert server.terminate() == 0
    first, second = context.server(), context.server()  # one of them at most has the default's port
    assert "there are no metrics" in first.log() + second.log()
    assert (first.terminate(), second.terminate()) == (0, 0)


# ---- hostile clients ----

def raw(server, data=b""):
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=CALL_TIMEOUT_S)
    connection.sendall(data)
    return connection


def read_all(connection):
    """What comes until the server closes; a reset is an end too."""
    data = b""
    with contextlib.suppress(OSError):
        while piece := connection.recv(65536):
            data += piece
    return data


def test_silent_and_slow_clients_give_way_to_others_and_are_closed(context):
    server = http_server(context)
    test_model = context.model("calm", server)
    worker = test_model.worker()
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(contextlib.closing(raw(server, b"" if i % 2 else b"GET /metrics HTTP/1.1\r\nA: ")))
                 for i in range(8 * CONNECTIONS_MAX)]
        for path in ("/livez", "/readyz", "/metrics"):
            assert get(server, path)[0] == 200, path
        assert worker.train({"w": [1.0] * 4}).verdict == common.VERDICT_APPLIED
        stop = threading.Event()

        def dribble():
            while not stop.wait(0.2):
                for connection in crowd:
                    with contextlib.suppress(OSError):
                        connection.send(b"x")

        dribbler = threading.Thread(target=dribble, daemon=True)
        dribbler.start()
        try:
            began = time.monotonic()
            for connection in crowd:
                read_all(connection)  # each is closed by the server; the timeout of the socket is the test's
            assert time.monotonic() - began < CALL_TIMEOUT_S
        finally:
            stop.set()
            dribbler.join()
    found = samples(server)
    assert value(found, "ampd_http_dropped_total") >= 8 * CONNECTIONS_MAX - 1
    assert worker.train({"w": [1.0] * 4}).step == 2
    assert server.terminate() == 0


def test_a_connection_that_is_kept_after_its_answer_is_closed_and_counts_as_no_dropped_one(context):
    server = http_server(context)
    with contextlib.closing(raw(server, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")) as connection:
        assert read_all(connection).startswith(b"HTTP/1.1 200")  # and closed, after REQUEST_S
    assert value(samples(server), "ampd_http_dropped_total") == 0
    assert server.terminate() == 0


def test_huge_and_broken_requests_get_a_status_or_the_end(context):
    server = http_server(context)
    for data in (b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                 b"GET /livez HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100000 + b"\r\n\r\n",
                 b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
                 b"GET /livez HTTP/1.1\r\n\r\n", b"GET /livez HTTP/9.9\r\nHost: x\r\n\r\n", b"\0\1\2\3\r\n\r\n",
                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET\r\n\r\n",
                 b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                 b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        with contextlib.closing(raw(server)) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
        assert not answer.startswith(b"HTTP/1.1 200"), (data[:60], answer[:100])
    body = b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\nConnection: close\r\n\r\n" + b"x" * 3000000
    with contextlib.closing(raw(server)) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(body)
        read_all(connection)
    assert get(server, "/livez")[0] == 200
    assert server.terminate() == 0


def _server_with_a_long_text(context):
    server = http_server(context)
    for i in range(30):
        context.model(f"m-{i}", server, load=False)
    return server


def _ask_and_never_read(stack, server):
    connection = stack.enter_context(contextlib.closing(socket.socket()))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect(("127.0.0.1", server.http_port))
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)


def test_who_does_not_read_holds_a_bounded_number_of_texts(context):
    server = _server_with_a_long_text(context)
    with contextlib.ExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            _ask_and_never_read(stack, server)
            time.sleep(0.02)
        assert get(server, "/livez")[0] == 200
        assert get(server, "/metrics")[0] == 200
    assert server.terminate() == 0


def test_clients_that_do_not_read_their_metrics_keep_nobody_else_from_them(context):
    server = _server_with_a_long_text(context)
    with contextlib.ExitStack() as stack:
        for _ in range(2 * TEXTS_MAX):
            _ask_and_never_read(stack, server)
            time.sleep(1.5 * FRESH_S)  # so that each has a text of its own
            assert get(server, "/metrics")[0] == 200
    assert server.terminate() == 0


if __name__ == "__main__":
    run(globals())
