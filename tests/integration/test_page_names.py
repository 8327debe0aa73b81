#!/usr/bin/python3
"""The page in a browser where names are as long as they can be, or turn text around.

    test_page_names.py BIN_DIR [NAME ...]
"""
import sys

from ampd_testing import eventually, run
from browser_testing import MISSING, browser
from page_testing import page_server
from test_page_browser import plotted, shows, text_of, url

PHONE = 320  # pixels
TURNS = "\u202e"  # U+202E: what follows is read from right to left
# Elements that reach beyond the screen, and those whose text reaches beyond themselves.
BEYOND = """
    const beyond = (e) => e.getBoundingClientRect().right > innerWidth || e.scrollWidth > e.clientWidth + 1;
    return [...document.querySelectorAll("#view .scroll, #view .tile, #view .under, #view .waits, #troubles p")]
        .filter(beyond).map((e) => e.className + ": " + e.textContent.slice(0, 80));"""


def await_the_first(context, server, first):
    """A model the second worker of which waits for the first one, of that name, after a step with a metric."""
    workers = [context.model("m", server, world_size=2).worker(first, rank=0)]
    workers.append(workers[0].model.worker("second", rank=1))
    calls = []
    for worker in workers:
        worker.pull()
        messages = worker.push_messages({"w": [1.0] * 4})
        messages[-1].trailer.metrics.add(name="m" * 31, value=0.5)
        calls.append(worker.api.start("Push", messages, 60))
    for worker, call in zip(workers, calls):
        worker.step = call.result().result.step + 1
        worker.pull()
    workers[1].start_push({"w": [1.0] * 4})


def test_no_name_however_long_reaches_beyond_a_phone(context):
    server = page_server(context)
    await_the_first(context, server, "n" * 127)
    with browser(width=PHONE, height=700) as driver:
        waits = "waits for rank 0 (nnn"
        for route, words in (("", waits), ("#/model/m", waits), ("#/model/m/step/1", "was applied")):
            driver.get(url(server, route))
            shows(driver, words)
            assert not (beyond := driver.execute_script(BEYOND)), (route, beyond)
            assert driver.execute_script("return document.documentElement.scrollWidth") <= PHONE, route


def test_a_name_that_turns_text_around_turns_no_sentence_around(context):
    server = page_server(context)
    await_the_first(context, server, f"a{TURNS}b")
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        shows(driver, "waits for rank 0 (a\ufffdb)", ".head")
        eventually(lambda: "a\ufffdb" in text_of(driver, ".tables"), "the table of workers has it")
        assert TURNS not in text_of(driver)


CUT = "return [...document.querySelectorAll('#crumbs > *')].map((crumb) => crumb.scrollWidth > crumb.clientWidth);"


def test_of_a_long_name_at_the_top_the_end_is_left_out_and_nothing_of_what_is_beside_it(context):
    server = page_server(context)
    name = "n" * 127
    context.model(name, server).worker().train({"w": [1.0] * 4})
    for width in (1280, PHONE):
        with browser(width=width, height=700) as driver:
            for route, words in ((f"#/model/{name}", "Models"), (f"#/model/{name}/step/1", "was applied")):
                driver.get(url(server, route))
                shows(driver, words)
                cut = driver.execute_script(CUT)
                assert cut[:3] == [False, True, False][:len(cut)], (width, route, cut)


COVERED = """
    const crumbs = [...document.querySelectorAll("#crumbs > *")].filter((crumb) => crumb.offsetWidth > 0);
    const right = Math.max(...crumbs.map((crumb) => crumb.getBoundingClientRect().right));
    return [right, document.getElementById("link").getBoundingClientRect().left];"""


def test_that_the_server_does_not_answer_covers_nothing_at_the_top_of_a_phone(context):
    server = page_server(context)
    context.model("m" * 40, server).worker().train({"w": [1.0] * 4})
    with browser(width=PHONE, height=700) as driver:
        driver.get(url(server, "#/model/" + "m" * 40))
        shows(driver, "live", "#link")
        server.process.kill()
        shows(driver, "no connection", "#link")
        right, left = driver.execute_script(COVERED)
        driver.get_log("browser")  # the errors of the calls that nobody answers
        assert right is not None and right <= left, (right, left)


def test_what_is_only_a_sign_has_a_name_for_who_does_not_see_it(context):
    server = page_server(context)
    context.model("m", server).worker().train({"w": [1.0] * 4})
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        names = [button.accessible_name for button in driver.find_elements("css selector", ".bar button")]
        assert names[:4] == ["All", "Last 10,000", "Last 1,000", "Last 100"], names
        assert names[4:] == ["Zoom out", "Zoom in", "Earlier steps", "Later steps"], names
        assert driver.find_element("css selector", "#crumbs a").accessible_name == "Models"


EDGES = """
    const left = (selector) => getComputedStyle(document.querySelector(selector)).paddingLeft;
    return [left("summary"), left("tbody th")];"""


def test_what_says_how_many_rows_are_folded_stands_below_the_rows(context):
    server = page_server(context)
    names = [f"p{at}" for at in range(20)]
    worker = context.model("m", server, parameters=[(name, [4]) for name in names]).worker()
    worker.train({name: [float("nan")] * 4 for name in names})
    with browser() as driver:
        driver.get(url(server, "#/model/m/step/1"))
        shows(driver, "8 more")
        summary, row = driver.execute_script(EDGES)
        assert summary == row, (summary, row)


if __name__ == "__main__":
    if MISSING is not None:
        print(f"SKIPPED: test_page_names: {MISSING}; scripts/packages.sh test installs them")
        sys.exit(77)
    run(globals())
