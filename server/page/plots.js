// The plots of a model, and how the page writes numbers. There are four plots over the same steps, which zoom, pan and
// show values together. The server thins what it sends (server/io/page/thin.h); after a zoom the visible steps are
// requested again, so that nothing in them is hidden.
"use strict";

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const whole = (value) => Math.round(value).toLocaleString("en");

/** At most four digits, for numbers that people have chosen: 0.25. Of what is not finite the server tells a word: NaN. */
export function digits(value) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
}

/** Always the same number of digits, for measured numbers, so that columns are even and nothing moves: 0.2500. */
export function measured(value, count = 4) {
  const size = Math.abs(value);
  if (!value || !Number.isFinite(value)) return digits(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace("e+", "e");
  return Number(value.toPrecision(count)).toLocaleString("en", { minimumSignificantDigits: count, maximumSignificantDigits: count });
}

/** For an axis, whose neighbouring ticks may differ in the fourth digit. */
const tick = (value) => value !== 0 && Math.abs(value) < 1e-3 ? Number(value.toPrecision(4)).toExponential() : digits(value);

/** A loss scale in full; large ones are whole numbers. */
export const plain = (value) => Number.isInteger(value) ? whole(value) : digits(value);
export const isPower = (value) => Number.isInteger(Math.log2(value));
/** "= 2¹⁶" where that is so. */
export const equals = (value) => isPower(value) ? "= " + power(value) : "";

/** A power of two as 2¹⁶; any other number in digits. */
export function power(value) {
  const log = Math.log2(value);
  if (!isPower(value)) return plain(value);
  return "2" + (log < 0 ? "⁻" : "") + [...String(Math.abs(log))].map((digit) => SUPERSCRIPTS[digit]).join("");
}

/** Names of the kinds of rows that are not steps. */
export const KINDS = { epoch: "new epoch", set: "scale set", reset: "scale reset", evict: "worker evicted", rate: "learning rate set" };

const withUnit = (value, write) => value >= 1 ? write(value) + " s" : write(value * 1000) + " ms";
/** Below a millisecond the time has whole microseconds, which are what the server's clock counts. */
export const seconds = (value) => value > 0 && value < 1e-3 ? whole(value * 1e6) + " µs" : withUnit(value, measured);
const tickSeconds = (value) => withUnit(value, digits);

export const count = (number, word) => whole(number) + " " + word + (number === 1 ? "" : "s");

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) { number /= 1024; at++; }
  return (at === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)) + " " + units[at];
}

/** A number and its unit stay on one line. */
export function span(ms) {
  const s = Math.max(0, ms / 1000);
  if (s < 60) return Math.floor(s) + "\u00a0s";
  if (s < 3600) return Math.floor(s / 60) + "\u00a0min";
  if (s < 86400) return Math.floor(s / 3600) + "\u00a0h " + Math.floor(s % 3600 / 60) + "\u00a0min";
  return count(Math.floor(s / 86400), "day");
}

/** A time that is still running: 1 min 5 s. */
export const lasting = (ms) => ms >= 60000 && ms < 3600000 ? span(ms) + " " + span(ms % 60000) : span(ms);

export const share = (part, all) => part === 0 && all > 0 ? "0 %"
  : all > 0 ? (100 * part / all).toFixed(100 * part / all < 1 ? 2 : 1) + " %" : "–";

/** Makes rows [step, a, b, ...] of several curves [[steps], [values]]; null where a curve has no value. */
function merge(curves) {
  const rows = new Map();
  curves.forEach(([steps, values], at) => steps.forEach((step, i) => {
    let row = rows.get(step);
    if (!row) rows.set(step, row = [step, ...curves.map(() => null)]);
    row[at + 1] = values[i];
  }));
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

/** The index of a curve's last point up to a step; -1: there is none. */
function indexAt([steps], step) {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** The value of a curve at a step: that of its last point up to the step. */
const valueAt = (curve, step) => curve[1][Math.max(0, indexAt(curve, step))] ?? null;

/** The loss of a step, or of one on the same pixel; null: none was told, or it was not finite. Each pixel has a scale. */
function lossAt(loss, scale, step) {
  const pixel = indexAt(scale, step);
  const [from, to] = [scale[0][pixel], scale[0][pixel + 1] ?? Infinity];
  const at = Math.max(indexAt(loss, step), indexAt(loss, from - 1) + 1);
  return loss[0][at] < to ? loss[1][at] : null;
}

const cut = ([steps, values], keep) => {
  const at = steps.map((step, i) => i).filter((i) => keep(steps[i]));
  return [at.map((i) => steps[i]), at.map((i) => values[i])];
};
const join = (a, b) => [a[0].concat(b[0]), a[1].concat(b[1])];
const NO_CURVE = [[], []];
const PAN_MS = 100;
const NEAR_PIXELS = 10; // a click or touch within this distance of a mark counts for the mark

// dygraphs is loaded after this module, so that the first requests are sent before. The page has legends of its own: that
// of dygraphs measures its width by a style attribute, which the page's security policy forbids.
const ready = new Promise((resolve) => {
  const take = () => {
    Dygraph.PLUGINS = Dygraph.PLUGINS.filter((plugin) => plugin !== Dygraph.Plugins.Legend);
    resolve();
  };
  if (typeof Dygraph === "undefined") document.addEventListener("DOMContentLoaded", take); else take();
});

// The plots. `curves` has the server's name of each curve, its label, how its values are written, and the number of its
// colour. The axis of the last curve (with `together`, of all) is logarithmic if the greatest visible value is more than
// `logAbove` times the least: otherwise a single stall would make the rest a flat line.
const PLOTS = [
  { id: "scale", title: "Loss scale", wide: true, step: true, log: true,
    curves: [["scale", "scale", (v) => (plain(v) + " " + equals(v)).trim(), 1]] },
  { id: "norm", title: "Gradient norm and clipping", range: [0, 1.05], axes: ["y2", "y"],
    curves: [["clip", "clip", measured, 2], ["norm", "norm", measured, 1]] },
  { id: "rate", title: "Learning rate and loss", axes: ["y", "y2"], logAbove: 100,
    curves: [["rate", "rate", digits, 1], ["loss", "loss", measured, 2]] },
  { id: "seconds", title: "Time of a step", wide: true, fromZero: true, logAbove: 10, together: true,
    curves: [["apply", "apply", seconds, 2], ["pull", "pull", seconds, 4], ["wait", "wait", seconds, 1],
             ["push", "push", seconds, 5], ["vote", "vote", seconds, 6], ["seconds", "since the step before", seconds, 3]] },
];
const OF_APPLIED = ["norm", "clip", "rate"]; // what a skipped step has none of
const LOG_DECADES = 3; // below the shortest step; a part that took less is drawn there, since 0 has no logarithm

export class Plots {
  /**
   * `host` gets the plots. `load(from, to, pixels)` requests a history; `open(step)` shows a skipped step;
   * `moved([from, to])` is called with the visible steps, or with null when all are visible.
   */
  constructor(host, { load, open, moved }) {
    Object.assign(this, { load, open, moved, charts: [], base: null, detail: null, window: null, timer: 0, round: 0 });
    for (const plot of PLOTS) host.append(this.make(plot));
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.onTheme = () => this.charts.forEach((chart) => chart.graph && chart.graph.updateOptions(this.colours(chart)));
    this.theme.addEventListener("change", this.onTheme);
  }

  make(plot) {
    const card = document.createElement("section");
    const head = document.createElement("header");
    const title = document.createElement("h2");
    const legend = document.createElement("div");
    const canvas = document.createElement("div");
    card.className = "card plot" + (plot.wide ? " wide" : "");
    card.dataset.plot = plot.id;
    title.textContent = plot.title;
    legend.className = "legend";
    canvas.className = "canvas";
    canvas.setAttribute("role", "img");
    head.append(title, legend);
    card.append(head, canvas);
    this.charts.push({ plot, legend, canvas, graph: null, title, log: null }); // log: name of the curve whose axis is logarithmic
    return card;
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.panTimer);
    this.theme.removeEventListener("change", this.onTheme);
    this.charts.forEach((chart) => chart.graph && chart.graph.destroy());
    this.charts = [];
  }

  /** The visible skipped steps; those of one pixel are one entry, as the server thins them. */
  get skipped() { return this.base ? this.skippedOf(this.shown()) : []; }

  skippedOf(shown) {
    const [from, to] = this.window || [-Infinity, Infinity];
    return shown.skipped.filter(([first, last]) => last >= from && first <= to);
  }

  get pixels() {
    const width = this.charts.length > 0 ? this.charts[0].canvas.clientWidth : 0;
    return Math.max(200, Math.min(800, Math.round(width || 800))); // two points for each pixel are enough
  }

  // ---- data ----

  /**
   * Takes a new whole history. The detail of a zoom stays until it has been requested again, unless the epoch is another
   * one, or the model is another one of the same name.
   */
  async set(history) {
    await ready;
    const { base } = this;
    if (base && (base.epoch !== history.epoch || base.created_ms !== history.created_ms)) this.detail = null;
    if (this.window && this.window[0] >= history.to) this.window = null;
    this.round++; // a request of detail that is under way is outdated
    this.base = history;
    this.draw();
    if (this.window) this.refine();
  }

  /** Forgets all steps. */
  clear() {
    clearTimeout(this.timer);
    Object.assign(this, { base: null, detail: null, window: null, round: this.round + 1 });
  }

  /** Adds new steps. True: a new history should be requested, as steps between are missing, or there are too many points. */
  add(more) {
    if (!this.base || more.to <= this.base.to) return false;
    if (more.from > this.base.to) return true;
    const end = this.base.to;
    const parts = this.detail && this.detail.to >= end ? [this.base, this.detail] : [this.base];
    for (const part of parts) {
      const had = part.to; // the detail may be newer than the base
      for (const name of Object.keys(more.curves))
        part.curves[name] = join(part.curves[name] || NO_CURVE, cut(more.curves[name], (step) => step > had));
      part.skipped.push(...more.skipped.filter(([first]) => first > had));
      part.rows += more.rows;
      part.to = part.decided = Math.max(part.to, more.to);
    }
    if (this.window && this.window[1] >= end - 1) this.window = this.window.map((edge) => edge + more.to - end);
    this.draw();
    return this.base.curves.scale[0].length > 6 * this.pixels;
  }

  /** The base, in which the detail replaces the steps of its range. */
  shown() {
    const { base, detail } = this;
    if (!detail) return base;
    const outside = (step) => step < detail.from || step > detail.to;
    const curves = {};
    for (const name of Object.keys(base.curves)) {
      const before = cut(base.curves[name], (step) => step < detail.from);
      const behind = cut(base.curves[name], (step) => step > detail.to);
      curves[name] = join(join(before, detail.curves[name] || NO_CURVE), behind);
    }
    const skipped = [...base.skipped.filter(([first, last]) => outside(first) && outside(last)), ...detail.skipped];
    return { ...base, curves, skipped: skipped.sort((a, b) => a[0] - b[0]) };
  }

  /** Requests the detail of the visible steps and of some on both sides. */
  refine() {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      if (!this.window) return;
      const round = ++this.round;
      const [from, to] = this.window;
      const margin = Math.max(0, Math.min(to - from, this.base.to - this.base.from - (to - from))) / 2;
      const history = await this.load(Math.max(1, Math.floor(from - margin)), Math.ceil(to + margin),
                                      Math.min(2000, 2 * this.pixels));
      if (!history || round !== this.round || !this.window) return;
      this.detail = history;
      this.draw();
    }, 120);
  }

  // ---- drawing ----

  colours({ plot }) {
    return {
      colors: [...plot.curves.map(([, , , number]) => colour("--curve-" + number)),
               ...(plot.log ? [colour("--skip")] : [])],
      gridLineColor: colour("--grid"),
      axisLineColor: colour("--line-strong"),
      rangeSelectorPlotStrokeColor: colour("--curve-1"),
    };
  }

  rowsOf({ plot, log }, shown) {
    const curves = plot.curves.map(([name]) => shown.curves[name] || NO_CURVE);
    if (!plot.log) {
      const lowest = log && plot.together ? least(curves[curves.length - 1][1]) / 10 ** LOG_DECADES : 0;
      const inLog = (name) => log !== null && (name === log || plot.together === true);
      return merge(curves.map(([steps, values], i) => [steps, inLog(plot.curves[i][0])
        ? values.map((value) => Math.log10(Math.max(value, lowest))) : values]));
    }
    const scale = [curves[0][0], curves[0][1].map(Math.log2)];
    const steps = shown.skipped.map(([first]) => first);
    return merge([scale, [steps, steps.map((step) => valueAt(scale, step))]]);
  }

  draw() {
    const shown = this.shown();
    this.skips = new Map(shown.skipped.map((entry) => [entry[0], entry]));
    for (const chart of this.charts) {
      const edge = Math.max(1, (shown.to - shown.from) * 0.006); // so that a mark at the end is fully visible
      const dateWindow = this.window || [shown.from - edge, shown.to + edge];
      chart.log = logOf(chart.plot, shown, dateWindow);
      const rows = this.rowsOf(chart, shown);
      const file = rows.length > 0 ? rows : [[shown.from, ...chart.plot.curves.map(() => null),
                                              ...(chart.plot.log ? [null] : [])]];
      const y = chart.plot.log ? { valueRange: rangeOf(rows, dateWindow) } : {};
      const twice = chart.plot.axes !== undefined && (chart.plot.id !== "rate" || this.hasLoss());
      if (chart.graph && chart.twice !== twice) { // the first loss: it needs an axis, for which the graph is made again
        chart.graph.destroy();
        chart.graph = null;
      }
      chart.twice = twice;
      if (chart.graph) chart.graph.updateOptions({ file, dateWindow, axes: { y },
                                                           includeZero: chart.plot.fromZero === true && !chart.log });
      else chart.graph = this.graph(chart, file, dateWindow);
      this.describe(chart, shown);
    }
    this.moved(this.window);
  }

  /** Called when a chart was drawn. If a user pans it, for which dygraphs has no event, the others follow when it rests. */
  panned(graph) {
    clearTimeout(this.panTimer);
    this.panTimer = setTimeout(() => {
      const [from, to] = graph.xAxisRange();
      if (this.window && Math.abs(from - this.window[0]) + Math.abs(to - this.window[1]) > 1e-6 * (to - from)) this.look(from, to);
    }, PAN_MS);
  }

  graph(chart, file, dateWindow) {
    const { plot, canvas } = chart;
    const labels = ["step", ...plot.curves.map(([, words]) => words), ...(plot.log ? ["skipped"] : [])];
    const y = plot.log
      ? { ticker: powersTicker, axisLabelWidth: 58, valueRange: rangeOf(file, dateWindow) }
      : { axisLabelFormatter: plot.id === "seconds" ? tickSeconds : tick, axisLabelWidth: 58, independentTicks: true,
          ticker: tickerOf(chart, "seconds", tickSeconds) };
    const series = {};
    if (plot.log) series.skipped = { strokeWidth: 0, drawPoints: true, pointSize: 4.5, highlightCircleSize: 7, stepPlot: false };
    if (plot.together) series[labels[labels.length - 1]] = { strokeWidth: 2.2 };
    if (chart.twice) plot.axes.forEach((axis, i) => { series[labels[i + 1]] = { axis }; });
    return new Dygraph(canvas, file, {
      ...this.colours(chart), labels, series, dateWindow,
      legend: "never", labelsUTC: true, animatedZooms: false, connectSeparatedPoints: true, stepPlot: plot.step === true,
      strokeWidth: 1.6, highlightCircleSize: 3.5, axisLabelFontSize: 12, rightGap: 12, includeZero: plot.fromZero === true && !chart.log,
      yRangePad: plot.log ? 0 : 12, drawGapEdgePoints: true, titleHeight: 0, xAxisHeight: 22,
      axes: {
        x: { axisLabelFormatter: (step) => Number.isInteger(step) ? whole(step) : "", axisLabelWidth: 74, valueFormatter: whole, drawGrid: false },
        y,
        y2: { axisLabelFormatter: tick, axisLabelWidth: 48, valueRange: plot.range || null, drawGrid: false,
              independentTicks: true, ticker: tickerOf(chart, "loss", tick) },
      },
      highlightCallback: (event, x, points, row) => this.point(chart, row),
      unhighlightCallback: () => this.point(null),
      zoomCallback: (from, to) => this.look(from, to),
      drawCallback: (drawn) => this.panned(drawn),
      clickCallback: (event) => this.click(chart, chart.graph.eventToDomCoords(event)[0]),
      underlayCallback: (context, area, graph) => this.underlay(context, area, graph),
    });
  }

  underlay(context, area, graph) {
    const acts = (this.base && this.base.acts) || [];
    context.save();
    context.strokeStyle = colour("--act");
    context.setLineDash([4, 4]);
    for (const act of acts) {
      const x = Math.round(graph.toDomXCoord(act.step)) + 0.5;
      if (act.step <= 1 || x < area.x || x > area.x + area.w) continue;
      context.beginPath();
      context.moveTo(x, area.y);
      context.lineTo(x, area.y + area.h);
      context.stroke();
    }
    context.restore();
  }

  // ---- the visible steps ----

  /** Shows these steps; from null: all. */
  look(from, to) {
    if (!this.base) return;
    const { first, from: begin, to: end } = this.base; // what one answer has may begin later than the history
    const all = from === null || (from <= begin && to >= end);
    const middle = (from + to) / 2;
    const half = Math.min(to - from, end - begin + 2) / 2; // one answer has no more
    const inside = (step) => Math.max(first - 1, Math.min(end + 1, step));
    this.window = all ? null : [inside(middle - half), inside(middle + half)];
    if (this.window && this.window[1] - this.window[0] < 4) {
      const middle = (this.window[0] + this.window[1]) / 2;
      this.window = [middle - 2, middle + 2];
    }
    if (all) this.detail = null;
    this.draw();
    if (this.window) this.refine();
  }

  /** Pans by a share of the visible range, or zooms around its middle by a factor. */
  move(share, factor = 1) {
    if (!this.base) return;
    const [from, to] = this.window || [this.base.from, this.base.to];
    const middle = (from + to) / 2 + share * (to - from);
    const half = (to - from) / 2 * factor;
    const shift = Math.max(0, this.base.first - (middle - half)) - Math.max(0, middle + half - this.base.to);
    this.look(middle - half + (factor <= 1 ? shift : 0), middle + half + (factor <= 1 ? shift : 0));
  }

  /** The entry of skipped steps nearest to a position on a plot; null: none is within NEAR_PIXELS. */
  skipAt(graph, x) {
    return nearest(this.skips.values(), ([first]) => first, graph, x);
  }

  click(chart, x) {
    const skip = chart.plot.log ? this.skipAt(chart.graph, x) : null;
    if (!skip) return;
    const [first, last, overflows, empties] = skip;
    const margin = Math.max(2, (last - first) / 4);
    if (overflows + empties === 1) this.open(first);
    else this.look(first - margin, last + margin);
  }

  /** Shows the values at a row of one chart in the legends of all charts. */
  point(from, row) {
    if (!this.base) return;
    const x = from ? from.graph.getValue(row, 0) : null;
    const shown = this.shown();
    for (const chart of this.charts) {
      if (!chart.graph) continue;
      if (from && chart !== from) chart.graph.setSelection(nearestRow(chart.graph, x));
      if (!from) chart.graph.clearSelection();
      this.describe(chart, shown, x);
    }
  }

  /** Whether any step has a loss, which workers may leave out. */
  hasLoss() {
    const loss = this.base.curves.loss;
    return loss !== undefined && loss[0].length > 0;
  }

  describe(chart, at, x = null) {
    const step = x !== null ? x : this.window ? Math.max(at.first, Math.min(at.to, Math.floor(this.window[1]))) : at.to;
    const skipped = at.skipped.some(([first, last]) => step === first || step === last);
    const parts = [];
    const say = (name, words, text) => {
      const span = document.createElement("span");
      const bold = document.createElement("b");
      span.className = name;
      bold.textContent = text;
      span.append(words + " ", bold);
      parts.push(span);
    };
    say("at", "step", whole(step));
    chart.plot.curves.forEach(([name, words, write, number]) => {
      const curve = at.curves[name];
      if (curve && curve[0].length > 0)
        say("c" + number, words + (name === chart.log ? " (log axis)" : ""),
          write(name === "loss" ? lossAt(curve, at.curves.scale, step)
            : skipped && OF_APPLIED.includes(name) ? null : valueAt(curve, step)));
    });
    if (chart.plot.log) {
      const count = this.skippedOf(at).reduce((sum, [, , overflows, empties]) => sum + overflows + empties, 0);
      const near = x !== null && chart.graph ? this.skipAt(chart.graph, chart.graph.toDomXCoord(x)) : null;
      chart.canvas.classList.toggle("near", near !== null);
      if (near) say("cs", "click for why step", whole(near[0]) + " was skipped");
      else say("cs", "skipped", whole(count));
    }
    const acts = (this.base.acts || []).filter((act) => act.step > 1);
    const act = x !== null && chart.graph ? nearest(acts, (each) => each.step, chart.graph, chart.graph.toDomXCoord(x)) : null;
    if (chart.plot.log && act) say("ca", KINDS[act.kind] || act.kind, "step " + whole(act.step));
    else if (chart.plot.log && acts.length > 0) say("ca", "restarts and acts", "");
    chart.legend.replaceChildren(...parts);
    if (chart.plot.id === "rate") chart.title.textContent = this.hasLoss() ? "Learning rate and loss" : "Learning rate";
    if (x === null)
      chart.canvas.setAttribute("aria-label", chart.title.textContent + ", steps " + whole(at.from) + " to " + whole(at.to) +
                                ": " + parts.map((part) => part.textContent).join(", "));
  }
}

/** The range of an axis in powers of two: a bit more than from the least to the greatest visible value. */
function rangeOf(rows, [from, to]) {
  let least = Infinity;
  let greatest = -Infinity;
  let before = null; // a step plot keeps the value of the point before the range
  for (const [step, ...values] of rows) {
    const value = values.find((each) => each !== null);
    if (value === undefined || step > to) continue;
    if (step < from) { before = value; continue; }
    least = Math.min(least, value);
    greatest = Math.max(greatest, value);
  }
  if (before !== null) { least = Math.min(least, before); greatest = Math.max(greatest, before); }
  return least <= greatest ? [least - 0.6, greatest + 0.6] : [0, 16];
}

/** The entry, whose step `stepOf` gives, that is nearest to a position on a plot; null: none is within NEAR_PIXELS. */
function nearest(entries, stepOf, graph, x) {
  let found = null;
  let least = NEAR_PIXELS;
  for (const entry of entries) {
    const distance = Math.abs(graph.toDomXCoord(stepOf(entry)) - x);
    if (distance < least) { least = distance; found = entry; }
  }
  return found;
}

function nearestRow(graph, x) {
  let low = 0;
  let high = graph.numRows() - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (graph.getValue(middle, 0) < x) low = middle + 1; else high = middle;
  }
  return low;
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);

/** The name of the curve whose axis is logarithmic for the visible values, or null. */
function logOf(plot, shown, [from, to]) {
  const [name] = plot.curves[plot.curves.length - 1];
  const [steps, values] = shown.curves[name] || NO_CURVE;
  const seen = plot.logAbove ? values.filter((value, i) => steps[i] >= from && steps[i] <= to) : [];
  const greatest = seen.reduce((a, b) => Math.max(a, b), -Infinity);
  // Values that are not visible have to be positive, too, since the curve is drawn towards them.
  return greatest > plot.logAbove * least(seen) && values.every((value) => value > 0) ? name : null;
}

/** Ticks of an axis. While its curve is logarithmic, they are at powers of ten, and have the plain numbers as labels. */
function tickerOf(chart, curve, write) {
  return (from, to, pixels, ...rest) => {
    if (chart.log !== curve) return Dygraph.numericTicks(from, to, pixels, ...rest);
    const room = Math.max(1, Math.ceil((to - from) / Math.max(1, pixels / 26)));
    const between = to - from < 2.5 && pixels > 100 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let log = Math.floor(from); log <= to; log++)
      for (const part of between) {
        const v = log + Math.log10(part);
        if (log % room === 0 && v >= from && v <= to) ticks.push({ v, label: write(part * 10 ** log) });
      }
    return ticks;
  };
}

/** Ticks at whole powers of two, as many as there is room for. */
function powersTicker(from, to, pixels) {
  const room = Math.max(1, Math.ceil((to - from) / Math.max(1, pixels / 26)));
  const ticks = [];
  for (let log = Math.ceil(from); log <= to; log++)
    if (log % room === 0) ticks.push({ v: log, label: power(2 ** log) });
  return ticks;
}
