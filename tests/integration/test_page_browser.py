#!/usr/bin/python3
"""The page in a browser, Chromium without a screen: what people see, how soon, and that no name is more than a text.

    test_page_browser.py BIN_DIR [NAME ...]
    test_page_browser.py --paint BIN_DIR      how soon a history of 100,000 steps is painted

With AMPD_SCREENSHOTS=1 it writes docs/images/ anew.
"""
import contextlib
import html
import os
import random
import re
import signal
import sys
import threading
import urllib.parse

import ampd_testing
from ampd_testing import ROOT, Api, Layout, TestModel, Worker, eventually, run
from auth_testing import TokenFile
from browser_testing import MISSING, browser
from page_testing import Events, ask, history, loaded_at, page_server, put_history, scaler as page_scaler, straggle
from test_ampctl_top import Terminal, row

if MISSING is None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

IMAGES = ROOT / "docs" / "images"
IMAGE_BYTES_MAX = 150000
STEPS = 100000
STREAMS_MAX = 32  # IO_PAGE_STREAMS_MAX
MODELS_SHOWN = 100
LOOK_S = 0.1  # between two looks at the page, each of which takes a core some 10 ms
PARAMETERS = [("embed.weight", [64]), ("layers.0.attention.query.weight", [64]), ("layers.0.mlp.up.weight", [64]),
              ("head.weight", [32])]


def url(server, route=""):
    return f"http://127.0.0.1:{server.http_port}/{route}"


def text_of(driver, selector="body"):
    return driver.find_element(By.CSS_SELECTOR, selector).text


def shows(driver, words, selector="body"):
    def look():
        with contextlib.suppress(Exception):  # the document is being made anew
            return words in text_of(driver, selector)
        return False
    return eventually(look, f"the page shows {words!r}; it has {text_of(driver)[:2000]!r}", pause_s=LOOK_S)


def plotted(driver):
    """Every plot has its canvases, drawn on."""
    return eventually(lambda: driver.execute_script(
        "return performance.getEntriesByName('ampd-plots').length > 0 && "
        "document.querySelectorAll('.plot canvas').length >= 8"), "plots are drawn", pause_s=LOOK_S)


def picture(driver, name):
    """The page as it is seen, into docs/images/ if that was asked for."""
    if os.environ.get("AMPD_SCREENSHOTS") != "1":
        return
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / name
    driver.save_screenshot(str(path))
    assert path.stat().st_size < IMAGE_BYTES_MAX, (name, path.stat().st_size)


def picture_of_top(context, server, name):
    """The screen of ampctl top, drawn by the browser, into docs/images/ if that was asked for."""
    if os.environ.get("AMPD_SCREENSHOTS") != "1":
        return
    terminal = Terminal(context, server, "-e", f"127.0.0.1:{server.port}", columns=180, lines=7)
    lines = terminal.shows("twelve bars, twice",
                           lambda lines: sum("▁" <= one <= "█" for one in row(lines, "llama-tiny-fp16")) == 24)
    body = ("<body style='margin:16px;background:#16181d;color:#e8e8e8'><pre style='font:11px/1.5 monospace'>" +
            html.escape("\n".join(lines)))
    with browser(width=1250, height=160) as driver:
        driver.get("data:text/html;charset=utf-8," + urllib.parse.quote(body))
        picture(driver, name)


class Trainers:
    """Workers that train in the background, a step each `pause_s`; those of `bad`: (step, rank) have an Inf."""

    def __init__(self, workers, sizes, pause_s=0.2, bad=()):
        self.sizes, self.pause_s, self.bad, self.stop = sizes, pause_s, set(bad), threading.Event()
        self.threads = [threading.Thread(target=self._train, args=(worker,), daemon=True) for worker in workers]
        for thread in self.threads:
            thread.start()

    def _train(self, worker):
        while not self.stop.wait(self.pause_s):
            worker.pull()
            draw = random.Random(worker.step)  # all push the same, so that the norm is that of one of them
            norm = 0.6 * worker.header.scale * (0.8 + 0.4 * draw.random()) / sum(self.sizes.values()) ** 0.5
            tensors = {name: [norm * draw.choice((-1, 1)) for _ in range(size)] for name, size in self.sizes.items()}
            if (worker.step, worker.rank) in self.bad:
                tensors["layers.0.mlp.up.weight"][13:16] = [float("inf"), float("nan"), float("-inf")]
            messages = worker.push_messages(tensors)
            messages[-1].trailer.loss = 2.1 + 0.1 * draw.random()
            messages[-1].trailer.metrics.add(name="accuracy", value=0.71 + 0.01 * draw.random())
            worker.step = worker.api.start("Push", messages, 60).result().result.step + 1

    def close(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(30)


class OnServer:
    """A model that is there already, as TestModel has it."""

    def __init__(self, server, made):
        self.server, self.name, self.api = server, made.name, Api(server.channel)
        self.layout = Layout(made)

    read_pull = TestModel.read_pull


def scene(context):
    """A server in the middle of a day: a model of 100,000 steps that trains, one that waits, one that is new, one that
    stands still."""
    server = page_server(context)
    scaler = page_scaler(growth_interval=1500)
    rows = history(STEPS)
    made = loaded_at(server, "llama-tiny-fp16", STEPS + 1, scale=rows[-1]["after_scale"], skipped=rows[-1]["skipped"],
                     growth_tracker=rows[-1]["growth_tracker"],
                     parameters=PARAMETERS, world_size=4, scaler=scaler,
                     optimizer=ampd_testing.model.OptimizerSpec(kind=ampd_testing.model.OPTIMIZER_KIND_SGD,
                                                                learning_rate=rows[-1]["lr"] or 6e-6))
    put_history(server, made.name, rows)
    context.model("resnet50", server, world_size=8, parameters=[("conv1.weight", [64]), ("fc.weight", [128])])
    for rank in range(5):
        Worker(OnServer(server, context_spec(server, "resnet50")), f"gpu-{rank:02}", rank=rank)
    context.model("bert-ner", server, load=False)
    freeze(context, server)
    model = OnServer(server, made)
    workers = [Worker(model, f"node-{rank // 2}-gpu{rank % 2}", rank=rank) for rank in range(4)]
    server.trainers = Trainers(workers, dict((name, shape[0]) for name, shape in PARAMETERS), bad=[(STEPS + 8, 2)])
    return server


def freeze(context, server):
    """A model that stands still: the scale is at its floor."""
    scaler = page_scaler(min_scale=16384.0)
    worker = context.model("whisper-fp16", server, max_consecutive_overflows=2, scaler=scaler,
                           floor_policy=ampd_testing.model.FLOOR_POLICY_FREEZE).worker("gpu-00")
    while not worker.model.status().frozen:
        worker.pull()
        worker.push({"w": [float("inf")] * 4})


def context_spec(server, name):
    return Api(server.channel).GetModel(model=name).spec


def step_shown(driver):
    return int(driver.find_element(By.CSS_SELECTOR, ".tile .num").text.replace(",", ""))


def decided(server, name):
    return next(model["decided"] for model in ask(server, "/api/status")["models"] if model["name"] == name)


def test_the_page_shows_models_plots_and_skipped_steps(context):
    server = scene(context)
    route = "#/model/llama-tiny-fp16"
    try:
        eventually(lambda: decided(server, "llama-tiny-fp16") > STEPS + 12, "a few steps are trained")
        with browser() as driver:
            driver.get(url(server))
            shows(driver, "llama-tiny-fp16")
            shows(driver, "waits for rank 5, rank 6, rank 7 of 8 to join")
            shows(driver, "a Load of the initial values")
            shows(driver, "steps/s")
            shows(driver, "live", "#link")
            picture(driver, "overview.png")
            driver.find_element(By.LINK_TEXT, "llama-tiny-fp16").click()
            plotted(driver)
            shows(driver, "node-0-gpu0")
            shows(driver, "the model came from elsewhere")
            shows(driver, "Learning rate and loss")
            shows(driver, "accuracy 0.7", ".tiles")
            before = step_shown(driver)
            eventually(lambda: step_shown(driver) >= before + 5, "the page goes on by itself")
            picture(driver, "model.png")
            driver.get(url(server, f"{route}/step/{STEPS + 8}"))
            shows(driver, "was skipped for overflow")
            shows(driver, "node-1-gpu0 (rank 2)")
            shows(driver, "layers.0.mlp.up.weight")
            shows(driver, "deepspeed_consecutive")
            picture(driver, "skipped.png")
        with browser(dark=True) as driver:
            driver.get(url(server, route))
            plotted(driver)
            shows(driver, "steps/s")
            picture(driver, "dark.png")
        with browser(width=390, height=844, scale=1.5) as driver:
            driver.get(url(server, route))
            plotted(driver)
            shows(driver, "steps/s")
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= 390, f"a phone would have to scroll sideways: {wide}"
            picture(driver, "phone.png")
            driver.get(url(server))
            shows(driver, "resnet50")
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= 390, wide
        picture_of_top(context, server, "top.png")
    finally:
        server.trainers.close()


def hunt(driver, plot, words):
    """Moves over a plot until its legend says so."""
    for x in range(-plot.size["width"] // 2 + 70, plot.size["width"] // 2 - 15, 6):
        ActionChains(driver, duration=0).move_to_element_with_offset(plot, x, 0).perform()
        if words in text_of(driver, '[data-plot="scale"] .legend'):
            return
    raise AssertionError(f"nowhere is {words!r}")


def test_a_plot_zooms_to_its_steps_and_a_mark_opens_the_step_that_was_skipped(context):
    server = page_server(context)
    made = loaded_at(server, "m", 2001, parameters=PARAMETERS, world_size=1)
    put_history(server, made.name, history(2000, skipped=(700, 701, 1500), seed=5))
    with browser() as driver:
        driver.get(url(server, "#/model/m/around/700/20"))
        plotted(driver)
        shows(driver, "steps 680 to 720", ".bar")
        driver.find_element(By.XPATH, "//button[text()='Last 100']").send_keys(Keys.ENTER)  # without a mouse, too
        shows(driver, "steps 1,901 to 2,001", ".bar")
        driver.find_element(By.XPATH, "//button[text()='All']").click()
        shows(driver, "drag to zoom", ".bar")
        label = driver.find_element(By.CSS_SELECTOR, '[data-plot="scale"] .canvas').get_attribute("aria-label")
        assert "steps 1 to 2,001" in label and "skipped 3" in label, label
        plot = driver.find_element(By.CSS_SELECTOR, '[data-plot="scale"] .canvas')
        split = re.search(r"apply .+ pull .+ wait .+ push .+ vote .+ since the step before", text_of(
            driver, '[data-plot="seconds"] .legend').replace("\n", " "))
        label = driver.find_element(By.CSS_SELECTOR, '[data-plot="seconds"] .canvas').get_attribute("aria-label")
        assert split and "wait " in label and "vote " in label, label
        hunt(driver, plot, "click for why step 1,500 was skipped")
        ActionChains(driver).click().perform()
        shows(driver, "was skipped for overflow")
        shows(driver, "Step 1,500")
        shows(driver, "until the last worker had pulled")
        driver.back()
        plotted(driver)
        assert not driver.find_elements(By.LINK_TEXT, "1,500"), "the list is of the steps that are shown"
        driver.find_element(By.XPATH, "//button[text()='All']").click()
        driver.find_element(By.LINK_TEXT, "1,500").click()
        shows(driver, "Step 1,500")
        shows(driver, "was skipped for overflow")
        driver.find_element(By.LINK_TEXT, "Show it in the plots").click()
        plotted(driver)
        shows(driver, "steps 1,400 to 1,600", ".bar")
        plot = driver.find_element(By.CSS_SELECTOR, '[data-plot="norm"] .canvas')
        ActionChains(driver).move_to_element(plot).key_down(Keys.SHIFT).click_and_hold().move_by_offset(
            plot.size["width"] // 4, 0).release().key_up(Keys.SHIFT).perform()
        eventually(lambda: re.search(r"steps 1,3\d\d to 1,5\d\d", text_of(driver, ".bar")), "all plots have moved")
        assert "1,500" in text_of(driver, ".pills")


def test_steps_that_were_skipped_one_after_another_are_reached_by_the_keyboard_alone(context):
    server = page_server(context)
    made = loaded_at(server, "m", 20001)
    put_history(server, made.name, history(20000, skipped=range(9001, 9005), seed=6))
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        shows(driver, "9,002 – 9,004 (3 steps)", ".pills")
        driver.find_element(By.PARTIAL_LINK_TEXT, "9,002 – 9,004").send_keys(Keys.ENTER)
        eventually(lambda: driver.find_elements(By.LINK_TEXT, "9,003"), "each of them")
        assert driver.switch_to.active_element.get_attribute("id") == "main"  # Tab goes on from there
        shows(driver, "skipped 4", '[data-plot="scale"] .legend')
        driver.find_element(By.XPATH, "//button[text()='All']").click()
        shows(driver, "9,002 – 9,004 (3 steps)", ".pills")
        driver.find_element(By.PARTIAL_LINK_TEXT, "9,002 – 9,004").send_keys(Keys.ENTER)  # the address stays
        eventually(lambda: driver.find_elements(By.LINK_TEXT, "9,003"), "each of them")
        axis = text_of(driver, '[data-plot="scale"] .canvas').split("\n")
        assert len(axis) == len(set(axis)), f"a label stands for two steps: {axis}"
        driver.find_element(By.LINK_TEXT, "9,003").send_keys(Keys.ENTER)
        shows(driver, "Step 9,003")


def test_an_open_page_hears_of_a_restart_that_took_steps_back(context):
    server = page_server(context, listen=f"127.0.0.1:{ampd_testing.free_port()}")
    made = context.model("m", server, checkpoint_every=8)
    worker = made.worker()

    def train(steps):
        for _ in range(steps):
            worker.train({"w": [1.0] * 4})

    train(8)
    eventually(lambda: made.status().durable_step == 8, "step 8 is durable")
    train(4)
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        assert "new epoch" not in text_of(driver, ".tables")
        server.restart_after_kill()
        made.reconnect()
        worker.join()
        train(2)  # where the page comes back to, training has not yet passed what it had seen
        shows(driver, "epoch 2", ".head")
        train(5)
        shows(driver, "new epoch", ".tables")
        driver.get_log("browser")  # of requests that nobody answered


def test_an_open_page_hears_of_a_restart_that_took_all_steps_back(context):
    server = page_server(context, listen=f"127.0.0.1:{ampd_testing.free_port()}")
    made = context.model("m", server)
    worker = made.worker()
    worker.train({"w": [1.0] * 4})
    worker.train({"w": [float("inf")] * 4})
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        assert driver.find_elements(By.LINK_TEXT, "2"), text_of(driver, ".tables")
        server.restart_after_kill()
        shows(driver, "No step yet.")
        assert not driver.find_elements(By.CSS_SELECTOR, ".pills"), text_of(driver, ".tables")
        made.reconnect()
        worker.join()
        worker.train({"w": [1.0] * 4})
        shows(driver, "step 1", '[data-plot="scale"] .legend')
        driver.get_log("browser")  # of requests that nobody answered


# The first answer of a path waits for window.release().
HOLD = """
    const fetched = window.fetch;
    window.fetch = (...asked) => {
        const answer = fetched(...asked);
        if (!String(asked[0]).includes(arguments[0]) || window.release) return answer;
        return new Promise((resolve) => { window.release = () => resolve(answer); });
    };"""
RELEASE_HISTORY = """
    const label = () => document.querySelector('[data-plot="scale"] .canvas').getAttribute("aria-label");
    window.release();
    setTimeout(() => arguments[0](label()), 500);"""


def test_an_answer_that_a_newer_one_has_overtaken_is_not_shown(context):
    server = page_server(context, "--worker-lease", "120s")  # the worker waits for a browser
    worker = context.model("m", server).worker()
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        shows(driver, "No step yet.")
        driver.execute_script(HOLD, "/api/history")
        worker.train({"w": [1.0] * 4})
        eventually(lambda: driver.execute_script("return window.release !== undefined"), "the first step is asked for")
        worker.train({"w": [1.0] * 4})
        plotted(driver)
        label = driver.execute_async_script(RELEASE_HISTORY)
        assert "steps 1 to 2" in label, label


# The next histories that are asked for, as many as window.failures says, are answered with an error.
FAIL_HISTORY = """
    const fetched = window.fetch;
    window.failures = 0;
    window.fetch = (...asked) => {
        if (!String(asked[0]).includes("/api/history") || window.failures === 0) return fetched(...asked);
        window.failures--;
        return Promise.resolve(new Response('{"error": "the store cannot be read"}', { status: 500 }));
    };"""


def test_a_history_that_could_not_be_read_is_asked_for_again(context):
    server = page_server(context)
    worker = context.model("m", server, checkpoint_every=1).worker()
    worker.train({"w": [1.0] * 4})
    worker.train({"w": [float("inf")] * 4})
    with browser() as driver:
        driver.get(url(server))
        shows(driver, "live", "#link")
        driver.execute_script(FAIL_HISTORY)
        driver.execute_script("window.failures = 1; location.hash = '#/model/m'")
        plotted(driver)
        shows(driver, "skipped 1", '[data-plot="scale"] .legend')
        assert "cannot be read" not in text_of(driver)
        driver.execute_script("window.failures = 1")
        worker.api.Rollback(model="m", epoch=1, step=0)
        shows(driver, "No step yet.")


RELEASE_PACE = """
    window.release();
    setTimeout(() => arguments[0](document.querySelectorAll("#view .plot canvas").length), 500);"""


def test_an_overview_that_was_left_draws_nothing_over_the_model_when_its_pace_comes(context):
    server = page_server(context)
    context.model("m", server).worker().train({"w": [1.0] * 4})
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        driver.execute_script(HOLD, "/api/pace")
        driver.execute_script("location.hash = '#/'")
        eventually(lambda: driver.execute_script("return window.release !== undefined"), "the pace is asked for")
        driver.find_element(By.LINK_TEXT, "m").click()
        plotted(driver)
        assert driver.execute_async_script(RELEASE_PACE) >= 8, text_of(driver)


def ran(context, script):
    """What a script tells that runs in the page of a server without models."""
    server = page_server(context)
    with browser() as driver:
        driver.get(url(server))
        shows(driver, "No model yet")
        return driver.execute_async_script(script)


LATE_LOSS = """
    const done = arguments[0];
    const part = (from, to, loss) => ({ from, to, decided: to, epoch: 1, rows: to - from + 1, acts: [], skipped: [],
        curves: { scale: [[from, to], [2, 2]], rate: [[from, to], [1e-3, 1e-3]], loss } });
    import("/plots.js").then(async ({ Plots }) => {
        const host = document.createElement("div");
        document.getElementById("view").append(host);
        const plots = new Plots(host, { load() {}, open() {}, moved() {} });
        const chart = plots.charts.find(({ plot }) => plot.id === "rate");
        const axes = () => [chart.graph.numAxes(), chart.graph.yAxisRange(0)[1] < 1];
        await plots.set(part(1, 2, [[], []]));
        const before = axes();
        plots.add(part(2, 4, [[3, 4], [9, 8]]));
        plots.add(part(4, 6, [[5, 6], [7, 6]]));
        done([before, axes(), host.querySelectorAll('[data-plot="rate"] canvas').length]);
    });"""


def test_a_loss_that_workers_tell_only_later_has_an_axis_of_its_own(context):
    assert (shown := ran(context, LATE_LOSS)) == [[1, True], [2, True], 2], shown


def test_a_model_that_is_trained_raises_no_alarm_when_its_workers_have_gone(context):
    server = page_server(context, "--worker-lease", f"{4 * ampd_testing.PATIENCE}s")
    workers = context.model("m", server, max_steps=1, world_size=2).workers(2)
    for worker in workers:
        worker.pull()
    first = workers[0].start_push({"w": [1.0] * 4})
    workers[1].push({"w": [1.0] * 4})
    first.result()
    with browser() as driver:
        for route in ("", "#/model/m"):
            driver.get(url(server, route))
            shows(driver, "done", ".chip.info")
            eventually(lambda: not {"2 of 2", "live"} & set(text_of(driver, "#view").split("\n")), "the leases end")
            assert "not there" not in text_of(driver, ".tiles"), text_of(driver)
        assert not driver.find_elements(By.CSS_SELECTOR, ".chip.bad, .down"), text_of(driver)


def test_what_was_measured_has_always_as_many_digits_and_what_was_chosen_none_too_many(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    for _ in range(2):
        worker.pull()
        messages = worker.push_messages({"w": [1024.0] * 4})
        messages[-1].trailer.loss = 0.25
        messages[-1].trailer.metrics.add(name="accuracy", value=0.5)
        worker.step = worker.api.start("Push", messages, 60).result().result.step + 1
    with browser() as driver:
        driver.get(url(server))
        shows(driver, "0.2500", "tbody")
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        shows(driver, "accuracy 0.5000", ".tiles")
        legend = eventually(lambda: text_of(driver, '[data-plot="rate"] .legend').replace("\n", " "), "a legend")
        assert "rate 0.5 " in legend and "loss 0.2500" in legend, legend
        driver.get(url(server, "#/model/m/step/2"))
        shows(driver, "clip 1.000", ".tiles")
        shows(driver, "2.000", ".tiles")  # the norm
        assert re.search(r"\b\d+ µs|\b[\d.]{5} m?s", text_of(driver, "#view table")), text_of(driver, "#view table")


# window.go() ends the stream of events, and nothing is heard of the server while window.away.
AWAY = """
    const fetched = window.fetch;
    window.fetch = (path, options) => {
        if (window.away) return Promise.reject(new TypeError("away"));
        if (!String(path).includes("/api/events")) return fetched(path, options);
        const stop = new AbortController();
        window.go = () => { window.away = true; stop.abort(); };
        return fetched(path, { ...options, signal: stop.signal });
    };"""


def test_a_model_that_was_made_again_while_the_page_was_away_has_none_of_the_old_steps(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    for value in (1.0, float("inf"), 1.0):
        worker.train({"w": [value] * 4})
    with browser() as driver:
        driver.get(url(server))
        driver.execute_script(AWAY)
        driver.execute_script("location.hash = '#/model/m'")
        plotted(driver)
        shows(driver, "skipped 1", '[data-plot="scale"] .legend')
        driver.execute_script("window.go()")
        worker.api.DeleteModel(model="m", force=True)
        worker = context.model("m", server).worker()
        for _ in range(3):
            worker.train({"w": [1.0] * 4})
        driver.execute_script("window.away = false")
        shows(driver, "skipped 0", '[data-plot="scale"] .legend')
        shows(driver, "step 3", '[data-plot="scale"] .legend')


HOSTILE = "<img src=x onerror=document.title='taken'>"


def test_names_that_are_html_and_script_are_shown_as_what_they_are(context):
    """A model's own name has no such characters (the server refuses them); a worker's and a parameter's may."""
    server = page_server(context)
    parameter = "</script><script>document.title='taken'</script>"
    worker = context.model("m", server, parameters=[(parameter, [4])]).worker(HOSTILE)
    worker.pull()
    worker.push({parameter: [float("inf"), 0.0, 0.0, 0.0]})
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        shows(driver, HOSTILE)
        driver.get(url(server, "#/model/m/step/1"))
        shows(driver, parameter)
        shows(driver, HOSTILE)
        driver.get(url(server, "#/model/" + "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"))
        shows(driver, "There is no model of this name")
        assert "taken" not in driver.title, driver.title
        assert driver.execute_script("return document.querySelectorAll('main img, main script').length") == 0


def test_a_server_with_tokens_asks_for_one_and_keeps_it_in_the_tab(context):
    tokens = TokenFile(context)
    token, other = tokens.new("read", "viewer"), tokens.new("peer", "another-shard")
    server = page_server(context, "--token-file", str(tokens.path))
    with browser() as driver:
        driver.get(url(server))
        shows(driver, "This server asks who looks")
        driver.find_element(By.ID, "token").send_keys("half" + Keys.ENTER)
        shows(driver, "That is no token")
        driver.find_element(By.ID, "token").send_keys("not-a-token-of-this-server" + Keys.ENTER)
        shows(driver, "is not in the server's token file")
        driver.find_element(By.ID, "token").send_keys(other + Keys.ENTER)
        shows(driver, "the role")  # it is known, and not for this
        driver.find_element(By.ID, "token").send_keys("\u200b" + token + Keys.ENTER)  # as it comes out of some chats
        shows(driver, "No model yet")
        shows(driver, "live", "#link")
        assert driver.get_cookies() == []
        driver.refresh()
        shows(driver, "No model yet")
        tokens.remove("viewer")
        server.process.send_signal(signal.SIGHUP)
        shows(driver, "This server asks who looks")  # who may not look any more does not hear on


def test_a_job_that_waits_says_so_for_whom_and_for_how_long(context):
    server = page_server(context)
    workers = context.model("m", server, world_size=2).workers(2)
    stop = threading.Event()

    def train(worker):
        with contextlib.suppress(ampd_testing.grpc.RpcError):  # the first waits until the server ends
            while worker is workers[0] or not stop.is_set():
                stop.wait(0.2)
                worker.train({"w": [1.0] * 4})

    for worker in workers:
        threading.Thread(target=train, args=(worker,), daemon=True).start()
    with browser() as driver:
        for route in ("", "#/model/m"):
            driver.get(url(server, route))
            shows(driver, "running", ".chip.good")
            shows(driver, "steps/")
        stop.set()
        for route in ("", "#/model/m"):
            driver.get(url(server, route))
            shows(driver, "waiting", ".chip.warn")
            eventually(lambda: re.search(r"waits for rank 1 \(w1\).*, for \d+ s", text_of(driver)), "for how long")
            eventually(lambda: any(part.text.startswith("no step for") for part in driver.find_elements(
                By.CSS_SELECTOR, ".under.late")), "a pace that says so")


def test_a_model_whose_workers_are_all_gone_says_for_how_long(context):
    server = page_server(context, "--worker-lease", "3s")
    for worker in context.model("m", server, world_size=2).workers(2):
        worker.pull()
    with browser() as driver:
        for route in ("", "#/model/m"):
            driver.get(url(server, route))
            words = r"waits for rank 0 \(w0\), rank 1 \(w1\) of 2, whose lease has ended, for \d\d\ss(?!, for)"
            eventually(lambda: re.search(words, text_of(driver)), "for how long")
            shows(driver, "waiting", ".chip.warn")


def test_a_worker_is_slow_only_while_it_is_there(context):
    server = page_server(context)
    both = context.model("m", server, world_size=2).workers(2)
    straggle(server, both)
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        shows(driver, "slow", ".tables tbody")
        both[1].api.Leave(**both[1].identity())
        shows(driver, "has left", ".tables tbody")
        assert "slow" not in text_of(driver, ".tables tbody"), text_of(driver, ".tables tbody")


def test_what_is_not_there_is_one_sentence_and_a_server_that_is_gone_dims_the_rest(context):
    server = page_server(context, "--worker-lease", "120s")  # the worker waits for a browser
    worker = context.model("m", server).worker()
    context.model("new", server)
    with browser() as driver:
        driver.get(url(server, "#/model/new"))
        shows(driver, "No step yet.")
        assert not any(plot.is_displayed() for plot in driver.find_elements(By.CSS_SELECTOR, ".plot"))
        driver.get(url(server, "#/model/m"))
        shows(driver, "No step yet.")
        worker.train({"w": [1.0] * 4})
        plotted(driver)
        assert "No step yet." not in text_of(driver)
        for route, words in (("#/model/m/step/999999", "999999"), ("#/model/nosuch", "There is no model of this name"),
                             ("#/model/nosuch/step/3", "There is no model of this name")):
            driver.get(url(server, route))
            shows(driver, words, "#view")
            shows(driver, "live", "#link")
            assert len(driver.find_elements(By.CSS_SELECTOR, "#view > *")) == 1, text_of(driver)
        driver.get(url(server))
        shows(driver, "live", "#link")
        server.stop()
        eventually(lambda: re.search(r"since \d\d:\d\d:\d\d UTC", text_of(driver, "#link")), "since when")
        assert float(driver.find_element(By.ID, "view").value_of_css_property("opacity")) < 0.6
        driver.get_log("browser")  # of requests that nobody answered


def test_who_skips_to_the_content_stays_at_the_model(context):
    server = page_server(context)
    context.model("m", server).worker().train({"w": [1.0] * 4})
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        driver.find_element(By.CSS_SELECTOR, ".skip").send_keys(Keys.ENTER)
        assert driver.execute_script("return [location.hash, document.activeElement.id]") == ["#/model/m", "main"]


def test_a_stall_and_a_loss_that_fell_far_have_a_log_axis_and_a_pace_is_compared_at_once(context):
    server = page_server(context)
    made = loaded_at(server, "m", 401, scale=24576.0)
    rows = history(400)
    for row in rows:
        row["scale"] = row["after_scale"] = 24576.0
        row["loss"] = 5000.0 / row["step"]
        row["at_us"] -= 60_000_000 * (row["step"] <= 250)  # a minute's stall
        row["at_us"] += 100_000 * max(0, row["step"] - 300) - 10_000_000  # then each takes 0.1 s more
    put_history(server, made.name, rows)
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        for plot in ("rate", "seconds"):
            shows(driver, "log axis", f'[data-plot="{plot}"] .legend')
        shows(driver, "24,576", '[data-plot="scale"] .legend')
        shows(driver, "% slower than 2", ".under.down")  # minutes ago, in the middle of what there is
        text = text_of(driver)
        assert "24,580" not in text and "24,576 =" not in text, text
        driver.find_element(By.XPATH, "//button[text()='Last 100']").click()
        eventually(lambda: "log axis" not in text_of(driver, '[data-plot="seconds"] .legend'), "a plain axis")
        assert not driver.get_log("browser")
        if os.environ.get("AMPD_LOOK"):
            driver.find_element(By.XPATH, "//button[text()='All']").click()
            driver.set_window_size(1280, 1500)
            driver.save_screenshot(os.environ["AMPD_LOOK"])


def test_where_too_many_look_the_page_asks_every_few_seconds_instead(context):
    server = page_server(context, "--worker-lease", "120s")  # the worker waits for a browser
    worker = context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    with contextlib.ExitStack() as stack:
        for _ in range(STREAMS_MAX):
            assert stack.enter_context(Events(server)).status == 200
        with browser() as driver:
            driver.get(url(server, "#/model/m"))
            shows(driver, "too many look at once", "#link")
            worker.train({"w": [1.0] * 4})
            eventually(lambda: step_shown(driver) == 2, "the page goes on without events")
            stack.close()
            shows(driver, "live", "#link")  # and with them, once there is a place


# From here on what is done every few seconds is done twenty times as often.
HURRY = "const set = window.setInterval; window.setInterval = (act, ms) => set(act, ms / 20);"
PACES_ASKED = """return performance.getEntriesByType("resource").map(({ name }) => new URL(name))
    .filter(({ pathname }) => pathname === "/api/pace").map(({ searchParams }) => searchParams.get("model"));"""


def test_of_many_models_each_has_a_pace_in_its_turn_and_a_head(context):
    server = page_server(context)
    names = [f"m{at:03}" for at in range(MODELS_SHOWN + 2)]
    for name in names[:-1]:
        context.model(name, server, load=False, parameters=[("w", [1])])
    crowd = context.model(names[-1], server, world_size=256, parameters=[("w", [1])])
    for rank in range(256):
        crowd.worker(f"{rank:03}" + "<" * 124, rank=rank)
    with browser() as driver:
        driver.get(url(server, "#/model/" + names[0]))
        shows(driver, "Nobody has joined", ".tables")
        driver.execute_script(HURRY)
        driver.execute_script("location.hash = '#/'")
        shows(driver, "2 more: ampctl status")
        shows(driver, f"of {len(names) - 1 + 256}", ".tiles")  # the workers of those that are not shown, too
        eventually(lambda: set(driver.execute_script(PACES_ASKED)) == set(names[:-2]), "each is asked for")
        driver.get(url(server, "#/model/" + names[-1]))
        shows(driver, names[-1], ".head h1")
        shows(driver, "of 256", ".tiles")
        shows(driver, "too many for this page", ".tables")
        assert "Nobody has joined" not in text_of(driver, ".tables")


def the_page_of_100000_steps_is_painted(context):
    """Only with --paint: a time that other work of the machine changes is for docs/bars.md, not for each run."""
    server = page_server(context)
    made = loaded_at(server, "m", STEPS + 1, parameters=PARAMETERS, world_size=1)
    put_history(server, made.name, history(STEPS))
    times = []
    with browser() as driver:
        for _ in range(6):
            driver.get(url(server, "livez"))  # the page is to be timed, not the start of a process
            driver.get(url(server, "#/model/m"))
            plotted(driver)
            mark = "return performance.getEntriesByName('ampd-plots')[0].startTime"
            times.append(driver.execute_script(mark) / 1000)
    print(f"from the request of the page to its plots: {', '.join(f'{t:.2f}' for t in times)} s")


if __name__ == "__main__":
    if "--paint" in sys.argv:
        sys.argv.remove("--paint")
        sys.argv.append("is_painted")
        test_the_page_of_100000_steps_is_painted = the_page_of_100000_steps_is_painted
    if MISSING is not None:
        print(f"SKIPPED: test_page_browser: {MISSING}; scripts/packages.sh test installs them")
        sys.exit(77)
    run(globals())
