#!/usr/bin/python3
"""The page in a browser where an answer does not come, a connection is gone, a model too, or nobody looks.

    test_page_away.py BIN_DIR [NAME ...]
"""
import contextlib
import datetime
import re
import socket
import sys
import threading

import ampd_testing
from ampd_testing import eventually, run
from browser_testing import MISSING, browser
from page_testing import history, loaded_at, page_server, put_history
from test_page_browser import FAIL_HISTORY, HOLD, plotted, shows, step_shown, text_of, url

if MISSING is None:
    from test_page_browser import By

TABS = 8  # a browser has six connections to a server


# ---- the clock ----

WRONG_CLOCK = "const now = Date.now; Date.now = () => now() + 5 * 3600 * 1000;"
COUNT = """
    const fetched = window.fetch;
    window.asked = 0;
    window.fetch = (...asked) => { window.asked++; return fetched(...asked); };"""


def test_since_when_a_server_is_away_is_told_by_its_own_clock(context):
    server = page_server(context)
    with browser() as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WRONG_CLOCK})
        driver.get(url(server))
        shows(driver, "live", "#link")
        server.stop()
        since = eventually(lambda: re.search(r"since (\d\d:\d\d:\d\d) UTC", text_of(driver, "#link")), "since when")
        now = datetime.datetime.now(datetime.timezone.utc)
        told = datetime.datetime.strptime(since[1], "%H:%M:%S").replace(tzinfo=now.tzinfo)
        assert (now - told).seconds < 600, (since[1], now)
        driver.execute_script(COUNT)
        eventually(lambda: driver.execute_script("return window.asked > 1"), "it tries again")
        driver.execute_script("window.asked = 0; location.hash = '#/'")
        eventually(lambda: driver.execute_script("return window.asked > 1"), "it tries again, from another view")
        assert since[0] in text_of(driver, "#link"), (since[0], text_of(driver, "#link"))
        driver.get_log("browser")  # of requests that nobody answered


# ---- connections ----

class Tunnel:
    """Passes on what comes at its port, as ssh -L does, until it has silently lost its connections; new ones work."""

    def __init__(self, server):
        self.server, self.lost, self.sockets = server, threading.Event(), []
        self.http_port = ampd_testing.free_port()
        self.listener = socket.create_server(("127.0.0.1", self.http_port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.server.http_port))
                self.sockets += [near, far]  # those that are lost stay open
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink, self.lost), daemon=True).start()

    @staticmethod
    def _pass_on(source, sink, lost):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if lost.is_set():
                    return
                sink.sendall(data)
            if not lost.is_set():
                sink.shutdown(socket.SHUT_WR)

    def lose(self):
        before, self.lost = self.lost, threading.Event()
        before.set()

    def close(self):
        for each in (self.listener, *self.sockets):
            each.close()


def test_a_connection_that_is_gone_without_a_word_is_made_again(context):
    server = page_server(context, "--worker-lease", "120s")  # the worker waits for a browser
    worker = context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    with contextlib.closing(Tunnel(server)) as tunnel, browser() as driver:
        driver.get(url(tunnel, "#/model/m"))
        plotted(driver)
        tunnel.lose()
        worker.train({"w": [1.0] * 4})
        shows(driver, "since", "#link")
        worker.train({"w": [1.0] * 4})
        eventually(lambda: step_shown(driver) == 3, "the page goes on")
        shows(driver, "live", "#link")
        shows(driver, "step 3", '[data-plot="scale"] .legend')
        driver.get_log("browser")  # of requests that were given up


def test_a_tab_that_nobody_sees_leaves_its_connection_to_those_that_are_seen(context):
    server = page_server(context, "--worker-lease", "120s")  # the worker waits for several browsers
    worker = context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    with browser() as driver:
        first = driver.current_window_handle
        for tab in range(TABS):
            if tab > 0:
                driver.switch_to.new_window("tab")
            driver.get(url(server, "#/model/m"))
            shows(driver, "live", "#link")
        driver.switch_to.window(first)
        worker.train({"w": [1.0] * 4})
        eventually(lambda: step_shown(driver) == 2, "the first tab goes on")
        shows(driver, "step 2", '[data-plot="scale"] .legend')


# ---- another ampd ----

# window.upgrade() ends the stream of events, and has those that follow say that another ampd answers.
UPGRADED = """
    const fetched = window.fetch;
    window.fetch = async (path, options) => {
        if (!String(path).includes("/api/events")) return fetched(path, options);
        const stop = new AbortController();
        window.upgrade = () => { sessionStorage.upgraded = 1; stop.abort(); };
        const answer = await fetched(path, { ...options, signal: stop.signal });
        if (!sessionStorage.upgraded) return answer;
        let rest = "";
        const another = new TransformStream({ transform(text, out) {  // a slow browser gets several events in a piece
            const events = (rest + text).split("\\n\\n");
            rest = events.pop();
            for (const one of events)
                out.enqueue(one.replace(/"version":"[^"]*"/, '"version":"99.0"').replace(/"parts":1/g, '"parts":2')
                    + "\\n\\n");
        } });
        return new Response(answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(another)
            .pipeThrough(new TextEncoderStream()));
    };"""


def test_a_page_that_stays_open_while_another_ampd_takes_the_place_gets_the_scripts_of_that_one_once(context):
    server = page_server(context)
    context.model("m", server).worker().train({"w": [1.0] * 4})
    with browser() as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": UPGRADED})
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        shows(driver, "live", "#link")
        driver.execute_script("window.before = true; window.upgrade()")
        eventually(lambda: not driver.execute_script("return window.before"), "the page is loaded anew")
        shows(driver, "ampd 99.0", "#foot")
        plotted(driver)
        shows(driver, "of the file here", ".tables")  # a checkpoint of two shards has another one elsewhere
        driver.execute_script("window.before = true; location.hash = '#/'")
        shows(driver, "Memory set aside", "#view")
        driver.execute_script("location.hash = '#/model/m'")
        plotted(driver)
        assert driver.execute_script("return window.before"), "it is loaded anew once"


# ---- answers ----

HISTORIES_ASKED = """return performance.getEntriesByType("resource")
    .filter(({ name }) => new URL(name).pathname === "/api/history").length;"""


def test_a_closer_look_that_could_not_be_read_is_read_again(context):
    server = page_server(context)
    loaded_at(server, "m", 2001)
    put_history(server, "m", history(2000))
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        eventually(lambda: driver.execute_script(HISTORIES_ASKED) > 1, "the first events have come")
        driver.execute_script(FAIL_HISTORY + "window.failures = Infinity;")
        driver.find_element(By.XPATH, "//button[text()='Last 100']").click()
        shows(driver, "the store cannot be read")
        driver.execute_script("window.failures = 0")
        eventually(lambda: "the store cannot be read" not in text_of(driver), "it is read")
        shows(driver, "steps 1,901 to 2,001", ".bar")


# Whether requests reach the server is window.away.
AWAY = """
    const fetched = window.fetch;
    window.fetch = (...asked) => window.away ? Promise.reject(new TypeError("Failed to fetch")) : fetched(...asked);
    window.away = true;"""


def test_what_was_asked_for_while_the_server_was_away_comes_when_it_is_back(context):
    server = page_server(context)
    context.model("m", server).worker().train({"w": [1.0] * 4})
    for route, words in (("#/model/m/step/1", "Step 1"), ("#/model/m", "skipped 0")):
        with browser() as driver:
            driver.get(url(server))
            shows(driver, "live", "#link")
            driver.execute_script(AWAY)
            driver.execute_script("location.hash = arguments[0]", route)
            shows(driver, "The server does not answer. This page goes on by itself when it does.", "#view")
            driver.execute_script("window.away = false")
            shows(driver, words, "#view")
            assert "does not answer" not in text_of(driver), text_of(driver)


def with_a_pace(context):
    """(server, worker of its model m), after more steps than a pace is shown for."""
    server = page_server(context)
    worker = context.model("m", server).worker()
    for _ in range(20):
        worker.train({"w": [1.0] * 4})
    return server, worker


def shows_a_pace(driver, worker, part):
    """Ten seconds after the last step there is none, and a browser may take as long to begin."""
    eventually(lambda: worker.train({"w": [1.0] * 4}) and "steps/s" in text_of(driver, part), "a pace is shown")


def test_a_model_that_is_opened_has_its_pace_at_once(context):
    """Also while those of the overview are still awaited."""
    server, worker = with_a_pace(context)
    with browser() as driver:
        hold = HOLD.replace("arguments[0]", "'/api/pace'")
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hold})
        driver.get(url(server))
        eventually(lambda: driver.execute_script("return window.release !== undefined"), "a pace is asked for")
        driver.find_element(By.LINK_TEXT, "m").click()
        shows_a_pace(driver, worker, ".tiles")


def test_a_page_stays_with_its_model_that_is_deleted_and_made_again(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    worker.train({"w": [float("inf")] * 4})
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        worker.api.DeleteModel(model="m", force=True)
        shows(driver, "There is no model of this name on this server.")
        context.model("m", server).worker().train({"w": [1.0] * 4})
        shows(driver, "skipped 0", '[data-plot="scale"] .legend')


def test_a_model_that_is_made_again_does_not_have_the_pace_of_the_one_before(context):
    server, worker = with_a_pace(context)
    with browser() as driver:
        driver.get(url(server))
        shows_a_pace(driver, worker, "tbody")
        worker.api.DeleteModel(model="m", force=True)
        shows(driver, "No model yet")
        context.model("m", server).worker().train({"w": [1.0] * 4})
        shows(driver, "0 steps", "tbody")
        assert "steps/s" not in text_of(driver, "tbody"), text_of(driver, "tbody")


if __name__ == "__main__":
    if MISSING is not None:
        print(f"SKIPPED: test_page_away: {MISSING}; scripts/packages.sh test installs them")
        sys.exit(77)
    run(globals())
