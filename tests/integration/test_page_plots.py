#!/usr/bin/python3
"""What the plots of the page show of steps that come late, or of which a value is missing, in a browser.

    test_page_plots.py BIN_DIR [NAME ...]
"""
import sys

from ampd_testing import eventually, model, run
from browser_testing import MISSING, browser
from page_testing import page_server
from test_page_browser import plotted, ran, shows, text_of, url

CLIP = model.ClipSpec(max_norm=1.0)

CLOSER = """
    const done = arguments[0], answers = [];
    const part = (from, to, skipped) => ({ from, to, first: 1, decided: to, epoch: 1, rows: to - from + 1, acts: [],
        skipped: skipped.map((step) => [step, step, 1, 0]), curves: { scale: [[from, to], [2, 2]] } });
    const until = async (what) => { while (!what()) await new Promise((resolve) => setTimeout(resolve, 10)); };
    import("/plots.js").then(async ({ Plots }) => {
        const host = document.createElement("div");
        document.getElementById("view").append(host);
        const load = (from, to) => new Promise((resolve) => answers.push(resolve));
        const plots = new Plots(host, { load, open() {}, moved() {} });
        await plots.set(part(1, 1000, [995]));
        plots.look(990, 1001);
        await until(() => answers.length === 1);
        answers[0](part(984, 1002, [995, 1002]));
        await until(() => plots.detail !== null);
        plots.add(part(1000, 1003, [1002, 1003])); // as events have it, from the last step that was told
        const closer = plots.skipped.map(([first]) => first);
        plots.look(null, null);
        done([closer, plots.skipped.map(([first]) => first)]);
    });"""


def test_a_closer_look_that_came_later_than_a_step_counts_it_once(context):
    assert (shown := ran(context, CLOSER)) == [[995, 1002, 1003], [995, 1002, 1003]], shown


EARLIER = """
    const done = arguments[0], asked = [];
    const part = (from, to) => ({ from, to, first: 1, decided: 1e6, epoch: 1, rows: to - from + 1, acts: [],
        skipped: [], curves: { scale: [[from, to], [2, 2]] } });
    const until = async (what) => { while (!what()) await new Promise((resolve) => setTimeout(resolve, 10)); };
    import("/plots.js").then(async ({ Plots }) => {
        const host = document.createElement("div");
        document.getElementById("view").append(host);
        const load = async (from, to) => { asked.push([from, to]); return part(from, to); };
        const plots = new Plots(host, { load, open() {}, moved() {} });
        const shown = [];
        await plots.set(part(750001, 1000000));
        for (const [from, to] of [[0, 200], [1, 999999]]) {
            plots.look(from, to);
            await until(() => asked.length > shown.length && plots.detail.from === asked[shown.length][0]);
            shown.push(plots.window);
        }
        plots.look(null, null);
        plots.move(-0.5);
        shown.push(plots.window);
        done([shown, asked.slice(0, 2), plots.charts[0].legend.textContent]);
    });"""


def test_steps_before_those_that_one_answer_has_are_shown_too(context):
    (first, wide, before), asked, legend_of = ran(context, EARLIER)
    assert first == [0, 200] and asked[0] == [1, 300], (first, asked)
    assert wide[1] - wide[0] == 250001 and asked[1][1] - asked[1][0] < 250003, (wide, asked)
    assert before[0] < 626000 and before[1] < 876000, before
    assert legend_of.startswith("step 875,"), legend_of


def test_a_loss_that_is_not_finite_is_told_as_what_it_is_and_not_as_that_of_a_step_before(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    for loss in (2.5, float("nan")):
        worker.pull()
        messages = worker.push_messages({"w": [0.0] * 4})
        messages[-1].trailer.loss = loss
        messages[-1].trailer.metrics.add(name="accuracy", value=float("inf"))
        worker.step = worker.api.start("Push", messages, 60).result().result.step + 1
    with browser() as driver:
        driver.get(url(server))
        shows(driver, "NaN", "tbody")
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        shows(driver, "NaN", ".tiles")
        shows(driver, "accuracy Infinity", ".tiles")
        eventually(lambda: "step 2 rate" in legend(driver), "the newest step")
        assert legend(driver).endswith("loss –"), legend(driver)
        driver.get(url(server, "#/model/m/step/2"))
        shows(driver, "NaN", ".tiles")


def test_a_skipped_step_has_no_norm_and_not_that_of_a_step_before(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    for value in (1.0, float("inf")):
        worker.train({"w": [value] * 4})
    with browser() as driver:
        driver.get(url(server, "#/model/m"))
        plotted(driver)
        eventually(lambda: "step 2 rate" in legend(driver), "the newest step")
        told = text_of(driver, '[data-plot="norm"] .legend').replace("\n", " ")
        assert (told, legend(driver)) == ("step 2 clip – norm –", "step 2 rate –"), (told, legend(driver))


def legend(driver):
    return text_of(driver, '[data-plot="rate"] .legend').replace("\n", " ")


# Pixels are of one step up to step 3, then of ten; step 2 has no loss, and neither has any from 14 to 23.
LOSSES = """
    const done = arguments[0], steps = [1, 2, 3, 4, 14, 24], ones = steps.map(() => 1);
    import("/plots.js").then(async ({ Plots }) => {
        const host = document.createElement("div");
        document.getElementById("view").append(host);
        const plots = new Plots(host, { load() {}, open() {}, moved() {} });
        const chart = plots.charts.find(({ plot }) => plot.id === "rate");
        await plots.set({ from: 1, to: 33, decided: 33, epoch: 1, rows: 33, acts: [], skipped: [],
            curves: { scale: [steps, ones], rate: [steps, ones], loss: [[1, 3, 6, 8, 33], [9, 8, 7, 6, 5]] } });
        done([1, 2, 3, 5, 7, 9, 14, 23, 24, 33].map((step) => {
            plots.describe(chart, plots.shown(), step);
            return chart.legend.querySelector(".c2 b").textContent;
        }));
    });"""


def test_a_legend_has_the_loss_of_its_step_or_of_one_on_the_same_pixel(context):
    shown = [told[0] for told in ran(context, LOSSES)]
    assert "".join(shown) == "9–8776––55", shown


# Of each curve: the colour of its sign in the legend, and whether a pixel of the plot has it.
COLOURS = r"""
    return [...document.querySelectorAll(".plot")].flatMap((plot) => {
        const canvas = plot.querySelector("canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const at = [...data.keys()].filter((byte) => byte % 4 === 0 && data[byte + 3] > 100); // lines have soft edges
        return [...plot.querySelectorAll('.legend > [class^="c"]')].map((sign) => {
            const colour = getComputedStyle(sign, "::before").backgroundColor.match(/\d+/g).map(Number);
            const like = (byte) => colour.every((part, i) => Math.abs(part - data[byte + i]) < 4);
            return [sign.textContent, colour, at.some(like)];
        });
    });"""


def test_each_curve_has_the_colour_of_its_sign_in_the_legend(context):
    server = page_server(context)
    worker = context.model("m", server, clip=CLIP).worker()
    for value in (1.0, 2.0, 4.0):
        worker.train({"w": [10 * value] * 4})
    for dark in (False, True):
        with browser(dark=dark) as driver:
            driver.get(url(server, "#/model/m"))
            plotted(driver)
            eventually(lambda: "step 3 rate" in legend(driver), "the newest step")
            colours = driver.execute_script(COLOURS)
            wanted = [told for told in colours if told[0].startswith(("scale", "clip", "norm", "rate"))]
            assert len(wanted) == 4 and all(drawn for _, _, drawn in wanted), colours


if __name__ == "__main__":
    if MISSING is not None:
        print(f"SKIPPED: test_page_plots: {MISSING}; scripts/packages.sh test installs them")
        sys.exit(77)
    run(globals())
