#!/usr/bin/python3
"""The data of the page, over HTTP: what it says of a server that trains, who may ask, and what nobody can do to it.

    test_page.py BIN_DIR [NAME ...]
"""
import contextlib
import itertools
import json
import re
import signal
import socket
import sqlite3
import subprocess
import time

from ampd_testing import CALL_TIMEOUT_S, ROOT, Code, common, eventually, refused, run, together
from auth_testing import Authority, TlsServer, TokenFile
from page_testing import (Events, ask, get, history, http_port, loaded_at, page_server, put_history, raw, scaler,
                          straggle)
from test_server_http import samples, shard_of_two, value

INF, NAN = float("inf"), float("nan")
NONFINITE_PUSHES = 5    # AMPD_NONFINITE_PUSHES
EPOCH = 2               # AMPD_ROW_EPOCH
STREAMS_MAX = 32        # IO_PAGE_STREAMS_MAX
SLICE_ROWS = 4096       # IO_PAGE_SLICE_ROWS
FRESH_S = 1.0           # IO_PAGE_FRESH_MS
PARTS = ("apply", "pull", "wait", "push", "vote")  # of the time of a step
STREAM_BYTES = 193 << 10  # IO_PAGE_STREAM_BYTES
ASSETS = ("/", "/page.css", "/page.js", "/document.js", "/plots.js", "/icon.svg", "/dygraph.js", "/dygraph.css")
API = ("/api/status", "/api/model?model=m", "/api/history?model=m", "/api/pace?model=m", "/api/step?model=m&step=1",
       "/api/events")
PAGE_BYTES_MAX = 250000
HISTORY = b"GET /api/history?model=m&pixels=%d HTTP/1.1\r\nHost: localhost\r\n\r\n"


def read_kib(server, field):
    """A line of /proc/PID/status in KiB."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
        return int(next(line.split()[1] for line in file if line.startswith(field)))


# ---- what it says ----

def test_the_page_is_whole_small_and_of_this_server_alone(context):
    server = page_server(context)
    total = 0
    for path in ASSETS:
        status, headers, text = get(server, path)
        total += int(headers["Content-Length"])
        assert status == 200 and len(text.encode()) == int(headers["Content-Length"]), path
        assert "://" not in text.replace("http://www.w3.org/", "") or "dygraph" in path, path
    assert 150000 < total < PAGE_BYTES_MAX, total
    assert not any("innerHTML" in get(server, path)[2] for path in ("/page.js", "/document.js", "/plots.js"))
    page = get(server, "/")[2]
    assert "<script>" not in page and "style=" not in page and " on" not in page.replace(" only", ""), page


def test_what_the_page_says_to_call_in_python_is_there(context):
    told = set(re.findall(r"\bampd\.([a-zA-Z]\w*)\(", get(page_server(context), "/page.js")[2]))
    names = (ROOT / "python" / "ampd" / "__init__.py").read_text()
    assert told and all(f'"{name}"' in names for name in told), told


def test_every_answer_says_what_a_browser_may_do_with_it(context):
    server = page_server(context)
    context.model("m", server).worker().train({"w": [1.0] * 4})
    for path in (*ASSETS, *API, "/api/nothing", "/api/model?model=none"):
        if path == "/api/events":
            with Events(server, path) as events:
                headers = events.answer.headers
            assert headers["X-Accel-Buffering"] == "no"  # or nginx hands on 4 KiB at once, and the page gives up
        else:
            _, headers, _ = get(server, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'") and "unsafe" not in policy, (path, policy)
        assert "frame-ancestors 'none'" in policy and headers["X-Frame-Options"] == "DENY", path
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer", path
        assert headers["Cache-Control"] == ("no-store" if path.startswith("/api/") else "no-cache"), path
        assert headers["Set-Cookie"] is None and headers["Access-Control-Allow-Origin"] is None, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(server, "/api/status", method=method)[0] == 405, method
    status, headers, text = get(server, "/api/status", method="HEAD")
    assert status == 200 and text == "" and int(headers["Content-Length"]) > 100
    for path in ("/metrics", "/livez", "/readyz"):  # as they were
        assert get(server, path)[1]["Content-Security-Policy"] is None, path


def test_status_and_model_follow_a_training(context):
    server = page_server(context)
    both = context.model("m", server, world_size=2).workers(2)

    def step(values):
        for worker in both:
            worker.pull()
        return together(both, [{"w": values}, {"w": [1.0] * 4}])

    step([1.0] * 4)
    step([INF, 0.0, NAN, 0.0])
    status = ask(server, "/api/status")
    model, = status["models"]
    assert (model["name"], model["state"], model["decided"], model["applied"], model["skipped"], model["scale"],
            model["world_size"], model["live"]) == ("m", "running", 2, 1, 1, 512, 2, 2), model
    counted = status["totals"].pop("memory_counted")
    assert counted > model["memory_bytes"] and status["totals"] == {"running": 1, "live": 2, "world_size": 2}, status
    assert model["last"]["step"] == 2 and not model["last"]["applied"] and model["awaited"] == []
    assert status["shards"][0]["up"] and status["troubles"] == [] and status["serving"]
    both[0].pull()
    waiting = both[0].start_push({"w": [1.0] * 4})
    awaited = eventually(lambda: ask(server, "/api/status")["models"][0]["awaited"], "rank 1 is awaited")
    assert awaited == [{"rank": 1, "name": "w1"}], awaited
    about = ask(server, "/api/model?model=m")
    assert [(w["rank"], w["name"], w["live"], w["awaited"], w["pushes"], w["overflows"]) for w in about["workers"]] == \
        [(0, "w0", True, False, 2, 1), (1, "w1", True, True, 2, 0)], about["workers"]
    assert about["workers"][1]["peer"].startswith("127.0.0.1:") and about["policy"] == "dynamic"
    assert about["checkpoints"][0]["step"] == 0 and about["checkpoints"][0]["bytes"] > 0
    both[1].pull()
    both[1].push({"w": [1.0] * 4})
    assert waiting.result().result.verdict == common.VERDICT_APPLIED
    found = ask(server, "/api/history?model=m")
    assert (found["decided"], found["rows"], found["skipped"]) == (3, 3, [[2, 2, 1, 0]]), found
    assert found["curves"]["scale"] == [[1, 2, 3], [1024, 1024, 512]]
    assert found["curves"]["norm"][0] == [1, 3] and len(found["curves"]["seconds"][0]) == 2
    parts = [found["curves"][name] for name in PARTS]
    assert all(steps == [2, 3] for steps, _ in parts), parts
    for total, *split in zip(found["curves"]["seconds"][1], *(values for _, values in parts)):
        assert abs(total - sum(split)) < 1e-6 and min(split) >= 0, found["curves"]
    first, second = (ask(server, f"/api/step?model=m&step={step}") for step in (1, 2))
    assert "times" not in first and list(second["times"]) == list(PARTS), second
    assert [second["times"][name] for name in PARTS] == [values[0] for _, values in parts], second
    assert found["curves"]["loss"] == [[], []] and "loss" not in ask(server, "/api/status")["models"][0]["last"]


def test_what_workers_tell_of_a_step_is_shown_where_they_tell_it(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    for loss in (2.5, NAN, 1.25):
        worker.pull()
        messages = worker.push_messages({"w": [0.0] * 4})
        messages[-1].trailer.loss = loss
        messages[-1].trailer.metrics.add(name="<b>", value=INF)
        messages[-1].trailer.metrics.add(name="accuracy", value=0.5)
        worker.step = worker.api.start("Push", messages, CALL_TIMEOUT_S).result().result.step + 1
    last = ask(server, "/api/status")["models"][0]["last"]
    assert (last["loss"], last["metrics"]) == (1.25, {"<b>": "Infinity", "accuracy": 0.5}), last
    assert ask(server, "/api/history?model=m")["curves"]["loss"] == [[1, 3], [2.5, 1.25]]
    step = ask(server, "/api/step?model=m&step=2")
    assert step["loss"] == "NaN" and step["metrics"]["accuracy"] == 0.5, step


def test_a_loss_that_is_no_number_is_told_beside_the_overflows_that_it_causes(context):
    server = page_server(context)
    worker = context.model("m", server, max_consecutive_overflows=2).worker()
    for loss in (NAN, NAN, 1.5):
        worker.pull()
        messages = worker.push_messages({"w": [NAN] * 4})
        messages[-1].trailer.loss = loss
        worker.step = worker.api.start("Push", messages, CALL_TIMEOUT_S).result().result.step + 1
        told = [trouble["text"] for trouble in ask(server, "/api/status")["troubles"]]
        if worker.step == 3:
            sentence = "The loss itself that a worker reported is NaN, which no loss scale can fix"
            assert told == [f"Training is unstable: 2 overflows in a row. {sentence}: look at its data."], told
            assert sentence in worker.api.ExplainStep(model="m", step=2).explanation
    assert told == ["Training is unstable: 3 overflows in a row."], told


def test_acts_of_operators_are_told_with_who_and_why(context):
    server = page_server(context)
    test_model = context.model("m", server)
    worker = test_model.worker()
    worker.train({"w": [1.0] * 4})
    worker.api.SetScale(model="m", scale=4096.0, reason="<b>too low</b>")
    worker.train({"w": [1.0] * 4})
    set_scale, created = ask(server, "/api/history?model=m")["acts"]
    assert (set_scale["kind"], set_scale["step"], set_scale["scale"], set_scale["reason"]) == \
        ("set", 2, 4096, "<b>too low</b>"), set_scale
    assert created["kind"] == "epoch"
    assert all(act["actor"].startswith("127.0.0.1") for act in (set_scale, created)), (set_scale, created)
    worker.api.SetLearningRate(model="m", learning_rate=0.125)
    acts = eventually(lambda: [act for act in ask(server, "/api/history?model=m")["acts"] if act["kind"] == "rate"],
                      "the act is on the page")
    rate = acts[0]
    assert (rate["step"], rate["learning_rate"], rate["old_scale"], rate["scale"]) == (3, 0.125, 4096, 4096), rate
    assert rate["old_learning_rate"] == ask(server, "/api/step?model=m&step=2")["rate"] > 0, rate
    assert "<b>" not in get(server, "/api/history?model=m")[2]
    worker.api.EvictWorker(model="m", rank=0)
    acts = eventually(lambda: [act for act in ask(server, "/api/history?model=m")["acts"] if act["kind"] == "evict"],
                      "the eviction is on the page")
    assert [(act["step"], act["rank"]) for act in acts] == [(3, 0)], acts


def test_a_skipped_step_is_explained_with_who_where_and_what_other_policies_would_have_done(context):
    server = page_server(context)
    first, second = context.model("m", server, world_size=2, parameters=[("a", [4]), ("b", [8])]).workers(2)
    clean = {"a": [0.0] * 4, "b": [0.0] * 8}
    for values in (clean, {"a": [0.0] * 4, "b": [1.0, 512.0, INF, 2.0, NAN, -INF, 0.0, 0.0]}):
        for worker in (first, second):
            worker.pull()
        together([first, second], [clean, values])
    step = ask(server, "/api/step?model=m&step=2")
    assert "worker w1 (rank 1) had 2 Inf and 1 NaN in b, the first at index 2" in step["explanation"], step
    assert (step["verdict"], step["old_scale"], step["scale"]) == ("overflow", 1024, 512)
    row, = step["overflows"]
    assert (row["source"], row["rank"], row["worker"], row["parameter"], row["inf"], row["nan"], row["first_index"],
            row["largest"]) == ("worker", 1, "w1", "b", 2, 1, 2, 512), row
    assert [c["name"] for c in step["contributors"]] == ["w0", "w1"]
    policies = {policy["policy"]: policy for policy in step["policies"]}
    assert len(policies) == 8 and step["replayed_from"] == 1
    assert policies["dynamic"]["own"] and (policies["dynamic"]["before"], policies["dynamic"]["after"]) == (1024, 512)
    assert policies["static"]["after"] == 1024 and policies["none"]["after"] == 1
    assert policies["megatron"]["after"] == 1024  # its hysteresis of 2 forgives one
    for policy in policies.values():  # as ReplayPolicy has it
        if policy["policy"] in ("dynamic", "megatron", "paddle"):
            spec = scaler(policy=getattr(common, "SCALER_POLICY_" + policy["policy"].upper()))
            spec.init_scale = 1024.0
            replayed = first.api.ReplayPolicy(model="m", scaler=spec)
            assert replayed.final_scale == policy["after"], policy
    for query, status in (("step=3", 404), ("step=0", 400), ("step=x", 400), ("step=-1", 400), ("", 400),
                          ("step=1&epoch=9", 404), ("step=99999999999999999999", 400)):
        assert get(server, f"/api/step?model=m&{query}")[0] == status, query


def test_a_step_that_was_read_less_than_a_second_ago_is_not_read_again(context):
    server = page_server(context)
    loaded_at(server, "m", 101)
    put_history(server, "m", [{**row, "norm": row["step"]} for row in history(100)])

    def norm_of(step):
        return ask(server, f"/api/step?model=m&step={step}")["norm"]

    def asked_again(step):
        """Its norm before all norms rise by 1 and behind that; and that of the next step, which is asked for first."""
        began = time.monotonic()
        before = norm_of(step)
        with contextlib.closing(sqlite3.connect(server.data_dir / "ampd.db", timeout=60)) as store, store:
            store.execute("UPDATE steps SET norm=norm+1 WHERE step<=100")
        behind, other = norm_of(step), norm_of(step + 1)
        return (step, before, behind, other) if time.monotonic() - began < FRESH_S else None

    steps = itertools.count(1, 2)
    step, before, behind, other = eventually(lambda: asked_again(next(steps)), "it is asked for twice in a second")
    assert (behind, other) == (before, before + 2), (step, before, behind, other)
    eventually(lambda: norm_of(step) == before + 1, "it is read again later")


def test_100000_steps_are_thinned_to_a_plot_without_a_skipped_step_lost(context):
    server = page_server(context)
    loaded_at(server, "m", 100001)
    rows = history(100000, seed=7)
    skipped = put_history(server, "m", rows)
    began = time.monotonic()
    found = ask(server, "/api/history?model=m&pixels=700")
    took = time.monotonic() - began
    print(f"thinned in {took:.2f} s")
    assert took < 5 and found["rows"] == 100000, (took, found["rows"])
    assert sum(overflows + empties for _, _, overflows, empties in found["skipped"]) == len(skipped)
    norms = [(row["norm"], row["step"]) for row in rows if row["verdict"] == 1]
    steps, values = found["curves"]["norm"]
    assert len(steps) <= 1400 and steps == sorted(steps)
    for value, step in (min(norms), max(norms)):
        assert abs(values[steps.index(step)] - value) <= 1e-8 * abs(value), step
    close = ask(server, "/api/history?model=m&from=50000&to=50099&pixels=700")
    assert close["rows"] == 100 and close["curves"]["norm"][0][0] >= 50000
    pace = ask(server, "/api/pace?model=m")
    assert 1 < pace["now"]["per_second"] < 5 and pace["now"]["steps"] == 100 and pace["hour"]["per_second"] > 1, pace
    assert pace["before"]["steps"] == 100 and 299000 < pace["now"]["at_ms"] - pace["before"]["at_ms"] < 310000, pace
    for query in ("from=7&to=3", "from=0", "to=0", "from=999999999", "pixels=0", "pixels=99999999"):
        found = ask(server, f"/api/history?model=m&{query}")
        assert 1 <= found["from"] <= found["to"] <= 100001 and len(found["curves"]["scale"][0]) <= 4000, query
    for query, status, words in (("model=m&from=abc", 400, "from: abc is not"), ("", 400, "?model=NAME"),
                                 ("model=none", 404, "no model none on this server; /api/status")):
        found, _, text = get(server, f"/api/history?{query}")
        assert found == status and words in str(text), (query, found, text)


def test_a_plot_begins_where_the_history_does(context):
    server = page_server(context)
    loaded_at(server, "m", 10001)
    put_history(server, "m", history(10000)[9000:])
    for query, steps in (("", (9001, 10001)), ("&from=9500", (9500, 10001)), ("&from=8000&to=9100", (9001, 9100)),
                         ("&from=8000&to=8100", (8000, 8100))):  # where none is there
        found = ask(server, "/api/history?model=m&pixels=200" + query)
        assert (found["from"], found["to"], found["first"]) == (*steps, 9001), (query, found["from"], found["to"])
    found = ask(server, "/api/history?model=m&pixels=200")
    assert len(found["curves"]["norm"][0]) > 300, "all of the plot is used"
    assert [act["step"] for act in found["acts"]][-1] == 1, found["acts"]  # how it began is told all the same


def test_a_pace_is_found_behind_any_number_of_epochs(context):
    """Limits of the history remove steps, and leave where epochs began."""
    server = page_server(context)
    loaded_at(server, "m", 101)
    steps = history(100)
    epochs = [{**steps[54], "sequence": at, "kind": EPOCH, "verdict": 0} for at in range(20)]
    put_history(server, "m", [*epochs, *steps[55:]])
    pace = ask(server, "/api/pace?model=m")
    assert pace["now"] is not None and 1 < pace["now"]["per_second"] < 5, pace


def test_events_bring_steps_as_they_are_decided_and_tell_of_a_rollback(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    with Events(server, "/api/events?model=m") as events:
        created_ms = ask(server, "/api/history?model=m")["created_ms"]
        assert abs(created_ms - time.time() * 1000) < 60000, created_ms
        assert events.next() == ("hello", {"after": 0, "epoch": 1, "created_ms": created_ms})
        assert events.until("status")["models"][0]["decided"] == 1
        assert events.until("model")["workers"][0]["name"] == "a"
        worker.train({"w": [1.0] * 4})
        worker.pull()
        worker.push({"w": [INF] * 4})
        told = []
        while not told or told[-1]["to"] < 3:
            told.append(events.until("steps"))
        assert sum(part["rows"] for part in told) == 3 and told[-1]["skipped"] == [[3, 3, 1, 0]], told
        worker.api.Rollback(model="m", epoch=1, step=0)
        events.until("reset")
        worker.api.DeleteModel(model="m", force=True)
        events.until("gone")
        assert events.next() is None  # and its place is another's
    assert get(server, "/api/events?model=none")[0] == 404


def test_what_an_operator_does_between_two_steps_is_told_at_once(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    with Events(server, "/api/events?model=m") as events:
        events.until("model")
        worker.api.SetScale(model="m", scale=4096.0)  # before any step
        assert events.until("steps")["acts"]
        worker.train({"w": [1.0] * 4})
        while events.until("steps")["to"] < 1:
            pass
        worker.api.SetScale(model="m", scale=2048.0)
        told = events.until("steps")
        assert told["acts"] and told["to"] == 1, told
        assert [act["scale"] for act in ask(server, "/api/history?model=m")["acts"] if act["kind"] == "set"] == \
            [2048, 4096]


def test_an_event_tells_of_no_step_that_it_does_not_have(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    act = {**history(1)[0], "kind": 3}
    put_history(server, "m", [{**act, "sequence": at} for at in range(100, 100 + SLICE_ROWS)])  # behind step 1
    with Events(server, "/api/events?model=m") as events:
        events.until("model")
        worker.train({"w": [1.0] * 4})
        told = events.until("steps")
        assert told["to"] == told["curves"]["scale"][0][-1] == 1, (told["to"], told["curves"]["scale"])
        told = events.until("steps")
        assert told["to"] == told["curves"]["scale"][0][-1] == 2, (told["to"], told["curves"]["scale"])


def test_an_answer_of_before_an_event_is_not_given_again_behind_it(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    with Events(server, "/api/events?model=m") as events:
        events.until("model")
        before = ask(server, "/api/history?model=m")
        worker.train({"w": [1.0] * 4})
        events.until("steps")
        behind = ask(server, "/api/history?model=m")
        assert [before["decided"], before["rows"], behind["decided"], behind["rows"]] == [0, 0, 1, 1], behind


def workers_that(server, state):
    """How many of the server's one model the metrics say are so."""
    return value(samples(server), "ampd_model_workers", model="m", state=state)


def test_a_slow_worker_is_a_trouble_while_it_is_there(context):
    server = page_server(context)
    both = context.model("m", server, world_size=2).workers(2)

    def slow():
        return [trouble["text"] for trouble in ask(server, "/api/status")["troubles"] if "rank 1" in trouble["text"]]

    straggle(server, both)
    assert eventually(slow, "rank 1 is told") == ["All others wait for rank 1 (w1) in each step."]
    eventually(lambda: workers_that(server, "straggling") == 1, "it is counted")
    both[1].api.Leave(**both[1].identity())
    eventually(lambda: slow() == [], "that it has left is all there is to tell")
    eventually(lambda: workers_that(server, "straggling") == 0, "it is counted no more")


def test_a_worker_with_inf_alone_is_a_trouble_while_it_is_there(context):
    server = page_server(context)
    both = context.model("m", server, world_size=2).workers(2)

    def told():
        return [trouble["text"] for trouble in ask(server, "/api/status")["troubles"] if "Rank 1" in trouble["text"]]

    for _ in range(NONFINITE_PUSHES):
        for worker in both:
            worker.pull()
        together(both, [{"w": [1.0] * 4}, {"w": [INF] * 4}])
    assert eventually(told, "rank 1 is told") == ["Rank 1 (w1) pushes Inf or NaN while others do not."]
    eventually(lambda: workers_that(server, "nonfinite") == 1, "it is counted")
    both[1].api.Leave(**both[1].identity())
    eventually(lambda: told() == [], "that it has left is all there is to tell")
    eventually(lambda: workers_that(server, "nonfinite") == 0, "it is counted no more")


def test_a_model_all_of_whose_leases_have_ended_says_for_how_long_it_has_waited(context):
    server = page_server(context, "--worker-lease", "3s")
    workers = context.model("m", server, world_size=2).workers(2)
    for worker in workers:
        worker.pull()

    def ended():
        model, = ask(server, "/api/status")["models"]
        return model if "whose lease has ended" in model["waiting_for"] else None

    model = eventually(ended, "both leases end")
    assert (model["awaited_ms"], model["waiting_ms"]) == (0, 0), model  # nobody who is there waits; not for long yet
    model = eventually(lambda: ended() if ended()["waiting_ms"] else None, "the server says for how long")
    assert model["awaited_ms"] == 0 and 10000 <= model["waiting_ms"] < 60000, model


def test_each_shard_shows_the_others_and_says_who_knows_the_workers(context):
    folder = context.folder()
    with shard_of_two(context, folder, 0) as first:
        status = ask(first, "/api/status")
        assert [(shard["index"], shard["up"]) for shard in status["shards"]] == [(0, True), (1, False)], status
        assert "shard 1" in status["troubles"][0]["text"] and not status["serving"], status["troubles"]
        with shard_of_two(context, folder, 1) as second:
            eventually(lambda: get(second, "/readyz")[0] == 200, "both are ready")
            status = ask(second, "/api/status")
            assert status["shard"] == 1 and any("known to shard 0" in t["text"] for t in status["troubles"]), status
            eventually(lambda: ask(first, "/api/status")["troubles"] == [], "shard 0 is content")


def test_of_many_models_with_long_names_as_many_are_shown_as_there_is_room_for(context):
    server = page_server(context)
    names = [f"{at:03}-" + "m" * 123 for at in range(130)]
    for name in names:
        context.model(name, server, load=False, parameters=[("w", [1])])
    status = ask(server, "/api/status")
    assert 40 < len(status["models"]) <= 100 and status["models_hidden"] == 130 - len(status["models"])
    with Events(server, "/api/events?model=" + names[0]) as events:
        assert len(events.until("status")["models"]) == len(status["models"])
        assert events.until("model")["model"] == names[0]
    assert ask(server, "/api/model?model=" + names[0])["status"].keys() == status["models"][0].keys()
    assert ask(server, "/api/model?model=" + names[-1])["status"]["name"] == names[-1]  # of which there was no room
    workers = context.model("crowd", server, world_size=256, parameters=[("w", [1])])
    for rank in range(256):
        workers.worker(f"{rank:03}" + "<" * 124, rank=rank)
    about = ask(server, "/api/model?model=crowd")
    assert about["workers_hidden"]  # as text they are 200 KB
    status = ask(server, "/api/status")
    assert about["model"] not in [model["name"] for model in status["models"]]
    counted = status["totals"].pop("memory_counted")
    assert status["totals"] == {
        "running": 1, "live": 256, "world_size": 130 * status["models"][0]["world_size"] + 256}, status["totals"]
    elements = status["memory_max"] // 8
    refusal = refused(lambda: context.model("large", server, load=False, parameters=[("w", [elements])]),
                      Code.RESOURCE_EXHAUSTED)
    assert f" {status['memory_max'] - counted} are left" in refusal.text, (refusal.text, status["totals"])


# ---- who may ask ----

def test_of_many_models_those_that_are_done_are_left_out_first(context):
    server = page_server(context)
    for at in range(100):
        context.model(f"done-{at:03}", server, parameters=[("w", [1])], max_steps=1).worker().train({"w": [1.0]})
    context.model("new", server, parameters=[("w", [1])])
    status = eventually(lambda: (lambda found: found if found["totals"]["world_size"] == 1 else None)(
        ask(server, "/api/status")), "all but one are done")
    assert status["models_hidden"] == 1 and "new" in {made["name"] for made in status["models"]}


def test_tokens_are_asked_for_with_the_roles_of_the_calls_and_change_nothing(context):
    tokens = TokenFile(context)
    read, peer = tokens.new("read", "viewer"), tokens.new("peer", "shard")
    operator = tokens.new("operator", "anna")
    server = page_server(context, "--token-file", str(tokens.path))
    for path in ASSETS:  # else nobody could be asked for a token
        assert get(server, path)[0] == 200, path
    for path in API:
        status, headers, text = get(server, path)
        assert status == 401 and headers["WWW-Authenticate"] == "Bearer" and "token" in json.loads(text)["error"], path
        for bad in ("Bearer " + "x" * 20, "Basic " + read, read, "Bearer " + read + "x", "Bearer", "x" * 2000):
            assert get(server, path, {"Authorization": bad})[0] == 401, (path, bad)
        assert get(server, path, {"Authorization": "Bearer " + peer})[0] == 403, path
    for token in (read, operator):
        assert ask(server, "/api/status", {"Authorization": "Bearer " + token})["models"] == []
    with raw(server, b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n" +
             b"Authorization: Bearer %s\r\n" % read.encode() * 2 + b"\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
    assert get(server, "/api/status?token=" + read)[0] == 401 and get(server, "/api/status", {"Cookie": read})[0] == 401
    for path in ("/metrics", "/livez", "/readyz"):
        assert get(server, path)[0] == 200, path
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        for path in (*API, "/api/scale", "/api/rollback"):
            assert get(server, path, {"Authorization": "Bearer " + operator}, method)[0] == 405, (method, path)
    with Events(server, headers={"Authorization": "Bearer " + read}) as events:
        assert events.next()[0] == "hello"
        tokens.remove("viewer")
        server.process.send_signal(signal.SIGHUP)
        while events.next() is not None:
            pass  # it ends
    assert get(server, "/api/status", {"Authorization": "Bearer " + read})[0] == 401
    assert read not in server.log() and "calls were refused" in server.log()


def test_a_name_that_somebody_has_let_resolve_to_this_machine_is_refused(context):
    server = page_server(context)
    port = server.http_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example",
                 "x@127.0.0.1"):
        for path in ("/", "/page.js", "/api/status", "/api/events"):
            status, _, text = get(server, path, {"Host": host})
            assert status == 421 and "Host" in json.loads(text)["error"], (host, path, status)
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost", f"[::1]:{port}"):
        assert get(server, "/api/status", {"Host": host})[0] == 200, host
    assert get(server, "/metrics", {"Host": "ampd.example"})[0] == 200  # as it was: Prometheus may have a name for it
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert get(server, "/api/status", {"Sec-Fetch-Site": site})[0] == status, site


def own_address():
    """An address of this machine that is not loopback; None: it has none."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        with contextlib.suppress(OSError):
            probe.connect(("192.0.2.1", 9))
            if not probe.getsockname()[0].startswith("127."):
                return probe.getsockname()[0]
    print("SKIPPED: test_page: this machine has no address but loopback")
    return None


def test_other_machines_get_nothing_without_insecure(context):
    """To the server such a machine has another address than the one that it has connected to."""
    address = own_address()
    if address is None:
        return
    tokens = TokenFile(context)
    header = {"Authorization": "Bearer " + tokens.new("read", "viewer")}
    for more, expected in (((), {"/": 403, "/page.js": 403, "/api/status": 403}),
                           (("--token-file", str(tokens.path)), {"/": 403, "/api/status": 403}),
                           (("--insecure",), {"/": 200, "/page.js": 200, "/api/status": 200}),
                           (("--insecure", "--token-file", str(tokens.path)), {"/": 200, "/api/status": 200})):
        server = page_server(context, *more, listen="0.0.0.0:0")
        for path, status in expected.items():
            found = get(server, path, header, source=address)
            assert found[0] == status, (more, path, found)
            if status == 403:
                told, port = json.loads(found[2])["error"], server.http_port
                assert f"ssh -L {port}:127.0.0.1:{port} HOST" in told and "ampd --insecure" in told, found
        if "--insecure" in more and "--token-file" in more:
            assert get(server, "/api/status", source=address)[0] == 401
        assert get(server, "/metrics", source=address)[0] == 200 and get(server, "/livez", source=address)[0] == 200
        assert get(server, "/")[0] == 200  # this machine
        server.stop()


def test_this_machine_may_look_where_the_port_listens_on_another_address_than_loopback(context):
    address = own_address()
    if address is None:
        return
    tokens = TokenFile(context)
    header = {"Authorization": "Bearer " + tokens.new("read", "viewer")}
    for more in ((), ("--token-file", str(tokens.path))):
        server = page_server(context, *more, listen=f"{address}:0")
        assert get(server, "/", host=address)[0] == 200
        assert get(server, "/api/status", host=address)[0] == (401 if more else 200)
        assert get(server, "/api/status", header, host=address)[0] == 200
        assert get(server, "/api/status", {**header, "Host": "evil.example"}, host=address)[0] == 421


def test_who_is_refused_is_not_sent_to_an_option_that_ampd_refuses_beside_tls_and_tokens(context):
    address = own_address()
    if address is None:
        return
    tokens = TokenFile(context)
    tokens.new("read", "viewer")
    server = TlsServer(context, Authority(context.folder()), "--metrics-listen", "127.0.0.1:0", "--token-file",
                       str(tokens.path))
    server.http_port = http_port(server)
    status, _, text = get(server, "/", source=address)
    assert status == 403 and "ssh -L" in text and "--insecure" not in text, (status, text)


def test_metrics_listen_none_turns_it_off(context):
    server = context.server("--metrics-listen", "none")
    assert "page=" not in server.log() and "metrics and health" not in server.log()


# ---- hostile names, hostile clients ----

def test_names_that_are_html_and_script_are_escaped_in_every_answer(context):
    server = page_server(context)
    parameter = "</script><script>alert(1)</script>"
    name = "<img src=x onerror=alert(2)>'\"&\u2028\\"
    worker = context.model("m", server, parameters=[(parameter, [4])]).worker(name)
    worker.pull()
    worker.push({parameter: [INF, 0.0, 0.0, 0.0]})
    for path in ("/api/status", "/api/model?model=m", "/api/history?model=m", "/api/step?model=m&step=1",
                 "/api/model?model=%3Cscript%3E", "/api/step?model=m&step=%3Cscript%3E"):
        _, headers, text = get(server, path)
        assert headers["Content-Type"] == "application/json; charset=utf-8"
        assert not set("<>&'\u2028") & set(text), (path, text)
        json.loads(text)
    step = ask(server, "/api/step?model=m&step=1")
    assert step["overflows"][0]["parameter"] == parameter and parameter in step["explanation"]
    assert step["overflows"][0]["worker"] == worker.name == ask(server, "/api/model?model=m")["workers"][0]["name"]


def test_200_streams_that_never_read_cost_a_bounded_memory_and_starve_nobody(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    ask(server, "/api/status")
    before = read_kib(server, "VmRSS")
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(raw(server, b"GET /api/events?model=m HTTP/1.1\r\nHost: localhost\r\n\r\n", 2048))
        until = time.monotonic() + 12
        slowest = 0.0
        while time.monotonic() < until:
            for path in ("/livez", "/readyz", "/metrics"):
                began = time.monotonic()
                assert get(server, path)[0] == 200, path
                slowest = max(slowest, time.monotonic() - began)
            assert worker.train({"w": [1.0] * 4}).verdict == common.VERDICT_APPLIED
            time.sleep(0.1)
        grown = read_kib(server, "VmRSS") - before
        status, headers, text = get(server, "/api/events")
        found = get(server, "/metrics")[2]
        print(f"{grown} KiB more, probes at most {slowest:.2f} s")
        assert slowest < 5, slowest
        assert grown < STREAMS_MAX * STREAM_BYTES / 1024 + 4096, grown
        streams = float(next(line.split()[1] for line in found.splitlines() if line.startswith("ampd_page_streams ")))
        assert streams <= STREAMS_MAX and (status == 200 or (status == 503 and headers["Retry-After"] == "1")), streams
        assert status == 200 or "too" in text or "as many" in text, text
    eventually(lambda: get_stream(server), "streams whose readers are gone make room")
    assert server.terminate() == 0


def flood(connection, text):
    """Sends it again and again until nobody takes more."""
    connection.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        for _ in range(2000):
            connection.sendall(text * 20)


def test_who_is_refused_and_never_reads_takes_no_answer_from_who_may_ask(context):
    tokens = TokenFile(context)
    header = {"Authorization": "Bearer " + tokens.new("read", "viewer")}
    server = page_server(context, "--token-file", str(tokens.path))
    with contextlib.ExitStack() as stack:
        for at in range(20):  # more than IO_PAGE_TEXTS_MAX
            path, host = ("/api/status", "/api/nothing")[at % 2], ("x", "localhost")[at // 2 % 2]
            flood(stack.enter_context(raw(server, receive_bytes=2048)),
                  f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        for _ in range(4):
            status, _, text = get(server, "/api/status", header)
            assert status == 200, text
    assert server.terminate() == 0


def test_a_refusal_says_why_however_strange_the_name_and_is_short(context):
    server = page_server(context)
    for name in ("%3C" * 500, "%01" * 900, "x" * 2000):
        for path in ("model", "history", "pace", "events"):
            status, _, text = get(server, f"/api/{path}?model={name}")
            assert status in (400, 404) and json.loads(text)["error"] and len(text) <= 1024, (path, status, text)


def test_a_url_with_too_many_arguments_or_too_long_is_refused_at_once_in_words(context):
    """libmicrohttpd falls silent, for 10 s, where its memory for a connection is taken up by what was asked."""
    server = page_server(context)
    context.model("m", server)
    for path in ("/api/model?model=m&", "/api/status?", "/?", "/metrics?"):
        for many in (17, 120, 300, 3500):
            began = time.monotonic()
            status, headers, text = get(server, path + "&".join(["a"] * many))
            assert status == 414 and "too many arguments" in json.loads(text)["error"], (path, many, status, text)
            assert headers["Connection"] == "close" and time.monotonic() - began < 5, (path, many, headers)
        for size in (5000, 7500, 8000, 100000):
            status, _, text = get(server, path + "x=" + "y" * size)
            assert status == 414 and "too" in text, (path, size, status, text)
        with raw(server, f"GET {path}{'a&' * 300} HTTP/1.1\r\n".encode()) as connection:  # whose headers never come
            assert connection.recv(100).startswith(b"HTTP/1.1 414 ")
    assert ask(server, "/api/model?" + "&".join(["a"] * 14) + "&x=" + "y" * 3900 + "&model=m")["model"] == "m"
    assert server.terminate() == 0


def get_stream(server):
    with Events(server) as events:
        return events.status == 200


def test_streams_end_with_the_server_and_reads_under_way_do_not_hold_it(context):
    server = page_server(context)
    loaded_at(server, "m", 60001)
    put_history(server, "m", history(60000))
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(Events(server, "/api/events?model=m")) for _ in range(4)]
        for at in range(8):  # and answers that nobody takes
            stack.enter_context(raw(server, HISTORY % (500 + at)))
        assert server.terminate() == 0
        for stream in streams:
            with contextlib.suppress(OSError, ValueError):
                while stream.next() is not None:
                    pass


def test_who_asks_for_much_at_once_is_told_to_come_again(context):
    server = page_server(context)
    loaded_at(server, "m", 60001)
    put_history(server, "m", history(60000))
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(raw(server, HISTORY % (500 + at))) for at in range(30)]
        statuses = set()
        for connection in asked:
            with contextlib.suppress(OSError):
                statuses.add(connection.recv(65536)[9:12])
    assert b"200" in statuses and statuses <= {b"200", b"503", b""}, statuses
    eventually(lambda: get(server, "/api/history?model=m")[0] == 200, "it answers again")
    assert server.terminate() == 0


def test_curl_can_ask_for_all_of_it(context):
    server = page_server(context)
    context.model("m", server).worker().train({"w": [1.0] * 4})
    for path in ("/api/status", "/api/history?model=m"):
        done = subprocess.run(["curl", "-sS", "--fail", "--noproxy", "*", f"http://localhost:{server.http_port}{path}"],
                              timeout=CALL_TIMEOUT_S, capture_output=True, check=False)
        if done.returncode == 127:
            print("SKIPPED: test_page: no curl")
            return
        assert done.returncode == 0 and json.loads(done.stdout), (path, done)


if __name__ == "__main__":
    run(globals())
