// The page of ampd. All texts are put into the document by textContent, never as HTML: clients choose the names of models,
// workers and parameters. There is no cookie; a token stays in this tab (sessionStorage) and is sent as a header.
"use strict";

import { byId, card, chip, folded, h, morph, show, table, tile, under } from "/document.js";
import {
  KINDS, Plots, bytes, count, digits, equals, isPower, lasting, measured, plain, power, seconds, share, span, whole,
} from "/plots.js";

const TOKEN = "ampd-token";
const POLL_MS = 3000; // between two requests, if the server has no more streams
const PACE_MS = 30000;
const PACES = 20; // most models whose pace is requested at a time
const PACE_STEPS = 5; // a pace of fewer steps is not shown
const BUSY_TRIES = 8;
const BUSY_MS = 300;
const LOST_MS = 6000; // a stream of which nothing comes for so long is begun again; a status comes each second
const ASK_MS = 60000; // an answer that has not come by then does not come: the connection may be gone without a word
const AWAITED_MS = 2000; // shorter waits for a rank are normal, and not shown
const WAITING_MS = 5000; // a model that has waited so long for a rank is shown as waiting, not as running
const SILENT_STEPS = 10; // a model without a step for so many times the usual time of one is shown as waiting,
const SILENT_MS = 10000; // but not before this time
const COLOURED_PERCENT = 10; // a pace that differs by less has no colour
const SAME_PERCENT = 3; // a pace that differs by less is called the same
const TOUCH = matchMedia("(pointer: coarse)");

// ---- words ----

const STATES = { frozen: "bad", unstable: "bad", running: "good", waiting: "warn", stalled: "bad", recovering: "warn", done: "info" };
const stands = (model) => (model.awaited_count > 0 && model.awaited_ms > WAITING_MS) || model.waiting_ms > 0 || silence(model) > 0;
const stateOf = (model) => model.frozen ? "frozen" : model.unstable ? "unstable"
  : model.state === "running" && stands(model) ? "waiting" : model.state;
const clockMs = () => Date.now() + state.skewMs; // time by the server's clock
const ago = (ms) => ms ? span(clockMs() - ms) + " ago" : "–";
const moment = (ms) => ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "–";
/** The metrics that workers gave for a step, as text. */
const told = (metrics) => Object.entries(metrics || {}).map(([name, value]) => name + " " + measured(value)).join(" · ");
const linkTo = (model, step, how = "step") => "#/model/" + encodeURIComponent(model) + (step ? "/" + how + "/" + step : "");

/** What /api/pace last answered for a model; null if it is not known, of too few steps, or of one before of its name. */
function known(model) {
  const found = state.paces.get(model.name);
  return found && found.now && found.now.steps >= PACE_STEPS && found.now.steps < model.decided ? found : null;
}

/** For how long the model had no step, if that is unusually long; else 0, as for one that is done. */
function silence(model) {
  const usual = known(model);
  if (!usual || !model.last || model.state === "done") return 0;
  const ms = clockMs() - model.last.at_ms;
  return ms > Math.max(SILENT_MS, SILENT_STEPS * 1000 / usual.now.per_second) ? ms : 0;
}

/** The model's pace, and how it compares with that of an hour ago, or else of some minutes ago. */
function pace(model) {
  const found = known(model);
  const late = model.last && model.state !== "done" && stands(model)
    ? { than: "no step for " + lasting(clockMs() - model.last.at_ms), kind: "late" } : null;
  if (late && (!found || silence(model) > 0)) return { value: "none", ...late };
  if (!found || model.state === "done") return { value: "–", than: "" };
  const { now, hour } = found;
  const before = hour && now.at_ms - hour.at_ms > 600000 ? [hour, "an hour ago"]
    : found.before ? [found.before, span(now.at_ms - found.before.at_ms) + " ago"] : null;
  const three = (number) => measured(number, 3);
  const value = now.per_second >= 0.1 ? [three(now.per_second), "steps/s"] : [three(60 * now.per_second), "steps/min"];
  if (late) return { value, ...late };
  if (!before) return { value, than: "" };
  const ratio = now.per_second / before[0].per_second - 1;
  const percent = Math.abs(100 * ratio);
  if (percent < SAME_PERCENT) return { value, than: "as " + before[1], kind: "" };
  return { value, kind: percent < COLOURED_PERCENT ? "" : ratio > 0 ? "up" : "down",
           than: (ratio > 0 ? "▲ " : "▼ ") + percent.toFixed(0) + " % " + (ratio > 0 ? "faster" : "slower") + " than " + before[1] };
}

function waits(model) {
  const ms = Math.max(model.awaited_ms, model.waiting_ms); // a push waits for those of others, or workers are gone
  const time = ms >= 1000 ? ", for " + lasting(ms) : "";
  if (model.waiting_for) return "waits for " + model.waiting_for.replace(/, for \d+ s$/, "") + time;
  if (model.awaited.length === 0 || model.awaited_ms < AWAITED_MS) return "";
  const names = model.awaited.map(({ rank, name }) => "rank " + rank + (name ? " (" + name + ")" : ""));
  const more = model.awaited_count - names.length;
  return "waits for " + names.join(", ") + (more > 0 ? " and " + more + " more" : "") + time;
}

// ---- requests ----

const state = { status: null, skewMs: 0, paces: new Map(), route: null, view: null, heardMs: 0 };

class NeedsToken extends Error {}

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: "Bearer " + token } : {};
}

async function request(path, options = {}) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ASK_MS), ...options });
  if (answer.ok) return answer;
  let said = {};
  try { said = { ...await answer.json() }; } catch { /* not JSON: another program answers at this port */ }
  const text = said.error || answer.statusText;
  if (answer.status === 401 || answer.status === 403) throw new NeedsToken(said.reason === "TOKEN_MALFORMED" ? NO_TOKEN : text);
  throw Object.assign(new Error(text), { status: answer.status, reason: said.reason });
}

/** Requests again while the server is busy (503), up to BUSY_TRIES times. */
async function ask(path) {
  for (let tries = 0; ; tries++) {
    try {
      return await (await request(path)).json();
    } catch (error) {
      if (error.status !== 503 || tries === BUSY_TRIES) throw error;
      await new Promise((resume) => setTimeout(resume, BUSY_MS * (1 + Math.random())));
    }
  }
}

const query = (path, values) => path + "?" + new URLSearchParams(values);

// ---- events ----

/** Waits until the page is to be seen. Of the few connections that a browser has to a server a hidden tab takes none. */
const seen = () => document.hidden && new Promise((resume) => document.addEventListener("visibilitychange", resume, { once: true }));
document.addEventListener("visibilitychange", () => document.hidden && state.view && state.view.listener.stop.abort());

/** Gets the events of a model (null: of the server) until the route changes, or polls if there are no more streams. */
class Listener {
  constructor(model, take) {
    this.model = model;
    this.stop = new AbortController(); // of the present stream
    this.take = (event, data) => this.closed || take(event, data); // an answer may come after close()
    this.run();
  }

  close() {
    this.closed = true;
    this.stop.abort();
  }

  /** Ends the stream where nothing more comes of it: a connection may be gone without a word. */
  mind() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.stop.abort(), LOST_MS);
  }

  async run() {
    let waitMs = 1000;
    for (await seen(); !this.closed; await seen()) {
      try {
        await this.stream(() => { waitMs = 1000; });
      } catch (error) {
        if (this.closed) return;
        if (document.hidden) continue;
        if (error instanceof NeedsToken) { askToken(error.message); return; }
        if (error.status === 404 && this.model !== null) { this.model = null; continue; } // the model was deleted
        if (error.status === 503 && await this.poll()) waitMs = POLL_MS;
        else if (!this.closed)
          tellLink("lost", (error.status ? error.message : "no connection" + since()) + ", trying again");
      } finally {
        clearTimeout(this.timer);
      }
      await new Promise((resume) => setTimeout(resume, waitMs));
      waitMs = Math.min(10000, waitMs * 1.7);
    }
  }

  async stream(heard) {
    this.stop = new AbortController();
    this.mind();
    const path = this.model === null ? "/api/events" : query("/api/events", { model: this.model });
    const answer = await request(path, { signal: this.stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      this.mind();
      const pieces = (rest + value).split("\n\n");
      rest = pieces.pop();
      for (const piece of pieces) {
        const event = /^event: (.*)$/m.exec(piece);
        const data = /^data: (.*)$/m.exec(piece);
        if (!event || !data) continue;
        heard();
        tellLink("live", "live");
        this.take(event[1], JSON.parse(data[1]));
      }
    }
  }

  async poll() {
    try {
      this.take("status", await ask("/api/status"));
      if (this.model !== null) {
        this.take("model", await ask(query("/api/model", { model: this.model })));
        this.take("reset", {});
      }
      if (!this.closed) tellLink("poll", "every few seconds: too many look at once");
      return true;
    } catch { return false; }
  }
}

/** As text, since when, by the server's clock, nothing has been heard of it; "" if it has never answered. */
const since = () => state.heardMs ? " since " + new Date(state.heardMs + state.skewMs).toISOString().slice(11, 19) + " UTC" : "";

/** Dims the page while what it shows may be old. */
function tellLink(kind, words) {
  if (kind !== "lost") state.heardMs = Date.now();
  byId("main").classList.toggle("old", kind === "lost");
  const link = byId("link");
  if (link.className !== "link " + kind) link.className = "link " + kind;
  if (link.textContent !== words) link.textContent = words;
}

/** Requests the paces of a view, one after another, until it is left. */
async function askPaces(models, view) {
  for (const name of models.slice(0, PACES)) {
    if (view.listener.closed) return;
    try { state.paces.set(name, await ask(query("/api/pace", { model: name }))); } catch { /* it is requested again later */ }
  }
}

function takeStatus(status) {
  if (state.status && state.status.version !== status.version) location.reload(); // another ampd has other scripts
  if (status !== state.status) state.skewMs = status.time_ms - Date.now(); // else another view takes what has come before
  state.status = status;
  status.models.sort((a, b) => a.name < b.name ? -1 : 1);
  showTroubles(status);
  show("foot", "ampd " + status.version + " · kernels " + status.isa + " · up " + span(status.uptime_ms) +
       (status.standbys === undefined ? "" : " · " + count(status.standbys, "standby")) + " · this page only reads: ampctl acts");
}

function showTroubles(status) {
  const wanted = state.route && state.route.model;
  const troubles = status.troubles.filter(({ model }) => !wanted || !model || model === wanted);
  show("troubles", troubles.map(({ model, text, remedy }) => h("div", { class: "trouble" },
    h("span", { class: "sign", "aria-hidden": "true" }, "⚠"),
    h("p", {}, model && !wanted ? [h("a", { href: linkTo(model) }, model), ": "] : null, text),
    h("p", {}, remedy))), status.troubles_hidden > 0 && h("p", { class: "note" }, "and " + status.troubles_hidden + " more"));
}

// ---- the overview ----

class Overview {
  constructor() {
    document.title = "ampd";
    show("crumbs", h("span", {}, "Models"));
    this.turn = 0; // index of the model whose pace is requested next; of many models not all are at once
    this.listener = new Listener(null, (event, data) => event === "status" && this.take(data));
    this.timer = setInterval(() => this.pace(), PACE_MS);
    if (state.status) this.take(state.status);
  }

  close() {
    this.listener.close();
    clearInterval(this.timer);
  }

  async pace() {
    if (this.asks || !state.status || document.hidden) return;
    this.asks = true;
    const names = state.status.models.map(({ name }) => name);
    const at = this.turn < names.length ? this.turn : 0;
    this.turn = at + PACES;
    await askPaces([...names.slice(at), ...names.slice(0, at)], this);
    this.asks = false;
    if (!this.listener.closed) this.draw();
  }

  take(status) {
    const first = !this.paced;
    this.paced = true;
    takeStatus(status);
    this.draw();
    if (first) this.pace();
  }

  draw() {
    const status = state.status;
    const { models } = status;
    const { memory_counted: memory, live, world_size: wanted } = status.totals;
    // Of a model that waits for long the server says that it runs; such a one that is not shown here counts as running.
    const stand = models.filter((model) => model.state === "running" && stateOf(model) === "waiting").length;
    const up = status.shards.filter((shard) => shard.up).length;
    show("view",
      h("dl", { class: "tiles" },
        tile("Models", whole(models.length + status.models_hidden), null, status.totals.running - stand + " running"),
        tile("Workers", whole(live), "of " + whole(wanted), wanted > live ? under(count(wanted - live, "rank") + " not there", "down") : wanted > 0 ? "all there" : null),
        status.disk_size > 0 && tile("Disk", bytes(status.disk_free), "free", h("meter", {
          min: 0, max: status.disk_size, value: status.disk_size - status.disk_free, low: 0.8 * status.disk_size,
          high: 0.95 * status.disk_size, optimum: 0, "aria-label": "used of " + bytes(status.disk_size) }), "of " + bytes(status.disk_size)),
        tile("Memory set aside", bytes(memory), null, status.memory_max > 0 && h("meter", {
          min: 0, max: status.memory_max, value: memory, low: 0.8 * status.memory_max, high: 0.95 * status.memory_max, optimum: 0,
          "aria-label": "of the " + bytes(status.memory_max) + " of --memory-max" }), status.memory_max > 0 ? "of " + bytes(status.memory_max) : null),
        tile("Shards", whole(up), "of " + status.shards.length, status.shards.length === 1 ? "a server alone"
          : up === status.shards.length ? "all there" : under("some are not there", "down"))),
      models.length === 0 ? this.welcome() : card("Models", status.models_hidden > 0 ? status.models_hidden + " more: ampctl status" : null,
        table("Models", COLUMNS.filter(([words]) => words !== "Loss" || models.some(({ last }) => last && last.loss !== undefined)),
          models, { stack: true })),
      status.shards.length > 1 && card("Shards", null, table("Shards", SHARD_COLUMNS, status.shards, { stack: true })));
  }

  welcome() {
    return card("No model yet", null, h("p", { class: "note" }, "A worker makes one: see ", h("code", {}, "examples/worker.c"),
      ", or in Python ", h("code", {}, "ampd.join(…)"), "; ",
      h("code", {}, "ampctl create"), " makes one from a file. It then shows here by itself."));
  }
}

const COLUMNS = [
  ["Model", (m) => h("a", { href: linkTo(m.name) }, m.name), "name"],
  ["State", (m) => [chip(stateOf(m), STATES[stateOf(m)]), under(waits(m), "late")], "wrap"],
  ["Step", (m) => [whole(m.decided), m.max_steps > 0 ? h("progress", { max: m.max_steps, value: m.decided, "aria-label": "of " + whole(m.max_steps) }) : null], "right"],
  ["Pace", (m) => { const p = pace(m); return [[p.value].flat().join(" "), under(p.than, p.kind)]; }, "right"],
  ["Loss scale", (m) => [plain(m.scale), isPower(m.scale) && under(power(m.scale))], "right"],
  ["Skipped", (m) => [share(m.skipped, m.attempted), under(count(m.skipped, "step"))], "right"],
  ["Loss", (m) => m.last && m.last.loss !== undefined ? measured(m.last.loss) : "", "right"],
  ["Workers", (m) => m.state === "done" && m.live === 0 ? "" : [m.live + " of " + m.world_size], "right"],
  ["Checkpoint", (m) => m.checkpoints > 0 ? ["step " + whole(m.checkpoint_step), under(ago(m.checkpoint_ms))] : "none", "right"],
];

const SHARD_COLUMNS = [
  ["Shard", (s) => String(s.index)],
  ["Address", (s) => h("code", {}, s.endpoint)],
  ["State", (s) => !s.known ? chip("not known here") : chip(s.up ? "there" : "not there", s.up ? "good" : "bad")],
  ["Since", (s) => s.since_ms ? ago(s.since_ms) : "–"],
  ["Behind", (s) => s.behind > 0 ? count(s.behind, "model") : "no"],
];

// ---- a model ----

class Model {
  constructor(name, around) {
    this.name = name;
    this.around = around;
    this.about = null;
    this.history = null;
    this.told = 0; // the last step that events have named
    this.asked = 0; // number of the last request for a history; `came` is that of the last one answered
    this.came = 0;
    this.reading = 0; // requests for a history that are under way
    document.title = name + " · ampd";
    show("crumbs", h("a", { href: "#/" }, "Models"), h("span", {}, name));
    this.frame();
    this.plots = new Plots(this.plotsHost, {
      load: (from, to, pixels) => this.load({ from, to, pixels }),
      open: (step) => { location.hash = linkTo(name, step); },
      moved: (seen) => this.moved(seen),
    });
    this.fresh();
    this.listener = new Listener(name, (event, data) => this.take(event, data));
    this.timer = setInterval(() => document.hidden || this.pace(), PACE_MS);
    this.pace();
    if (state.status) this.take("status", state.status);
  }

  close() {
    this.closed = true;
    this.listener.close();
    this.plots.close();
    clearInterval(this.timer);
  }

  frame() {
    const button = (words, title, act) => {
      const made = h("button", { type: "button", title, "aria-label": /\w/.test(words) ? null : title }, words);
      made.addEventListener("click", act);
      return made;
    };
    this.head = h("div", {});
    this.tables = h("div", { class: "tables" });
    this.plotsHost = h("div", { class: "plots" });
    this.ranges = [["All", null], ["Last 10,000", 10000], ["Last 1,000", 1000], ["Last 100", 100]].map(([words, steps]) => {
      const made = button(words, "Show these steps", () => this.range(steps));
      made.setAttribute("aria-pressed", String(steps === null));
      return [made, steps];
    });
    this.seen = h("span", { class: "quiet small push num", role: "status" });
    this.bar = h("div", { class: "bar", role: "group", "aria-label": "Steps that are shown" },
      this.ranges.map(([made]) => made),
      button("−", "Zoom out", () => this.plots.move(0, 2)), button("+", "Zoom in", () => this.plots.move(0, 0.5)),
      button("←", "Earlier steps", () => this.plots.move(-0.5)), button("→", "Later steps", () => this.plots.move(0.5)), this.seen);
    this.tables.addEventListener("click", (event) => { // a link to the present address causes no hashchange event
      const link = event.target.closest("a");
      const { around } = parse();
      if (link && around && link.hash === location.hash) this.plots.look(around[0] - around[1], around[0] + around[1]);
    });
    this.empty = h("p", { class: "card note" }, "No step yet.");
    byId("view").replaceChildren(this.head, this.bar, this.plotsHost, this.tables);
  }

  async load(values) {
    try {
      return await ask(query("/api/history", { model: this.name, ...values }));
    } catch (error) {
      this.lacks = true;
      if (!this.closed && error.status === 404) this.missing();
      else if (!this.closed) failed(error);
      return null;
    }
  }

  /** Shows only a sentence, as long as there is no model of this name. */
  missing() {
    this.missed = true;
    this.plots.close();
    alone(NO_MODEL);
  }

  async fresh() {
    const asked = ++this.asked;
    this.reading++;
    const history = await this.load({ pixels: this.plots.pixels });
    this.reading--;
    if (!history || this.plots.charts.length === 0 || asked < this.came) return;
    this.came = asked;
    this.lacks = asked < this.asked;
    this.history = history; // the plots have the same object, which grows with the events
    if (byId("failed")) byId("failed").remove();
    const none = history.rows === 0;
    for (const part of [this.bar, this.plotsHost]) part.hidden = none;
    if (none) {
      this.plots.clear();
      this.tables.before(this.empty);
      this.drawTables();
      return;
    }
    this.empty.remove();
    await this.plots.set(history);
    if (this.plots.charts.length === 0) return; // the page was left meanwhile
    if (this.around) this.plots.look(this.around[0] - this.around[1], this.around[0] + this.around[1]);
    this.around = null;
    if (!this.painted) { this.painted = true; performance.mark("ampd-plots"); }
  }

  async pace() {
    await askPaces([this.name], this);
    if (!this.closed) this.drawHead();
  }

  range(steps) {
    if (!this.history) return;
    this.picked = steps;
    if (steps === null) this.plots.look(null, null);
    else this.plots.look(Math.max(this.history.from, this.history.to - steps), this.history.to);
  }

  moved(seen) {
    const wide = seen && seen[1] - seen[0];
    for (const [made, steps] of this.ranges)
      made.setAttribute("aria-pressed", String(seen ? steps !== null && Math.abs(wide - steps) < 2 : steps === null));
    const { first, from, to } = this.history;
    const words = seen ? "steps " + whole(Math.max(1, seen[0])) + " to " + whole(seen[1])
      : from > first ? "steps " + whole(from) + " to " + whole(to) + ": ← has those before"
      : TOUCH.matches ? "two fingers zoom, one moves; touch a mark for its step"
      : "drag to zoom, shift and drag to move, double click for all, click a mark for its step";
    if (this.seen.textContent !== words) this.seen.textContent = words;
    this.drawTables(); // the list of skipped steps has those that the plots show
  }

  take(event, data) {
    if (event === "status") {
      takeStatus(data);
      const stale = this.lacks || this.history?.decided < this.told; // an answer has not come, or an older one
      if (stale && this.reading === 0 && !this.missed) this.fresh();
      this.drawHead();
    } else if (event === "model") {
      this.about = data;
      this.drawTables();
    } else if (event === "steps") {
      this.told = Math.max(this.told, data.to);
      if (this.plotsHost.hidden || this.plots.add(data) || data.acts) this.fresh();
    } else if (event === "reset") {
      this.told = 0;
      this.fresh();
    } else if (event === "hello") {
      this.told = data.after; // the next `status` compares it with the history
      const known = this.history && data.epoch !== 0 ? this.history : data;
      if (known.created_ms !== data.created_ms || known.epoch !== data.epoch) this.fresh(); // another model or epoch
    } else if (event === "gone") {
      this.missing();
    }
  }

  /** The model's status from `status`, or, if that does not have all models, from the model's own event. */
  get model() {
    const { models, models_hidden } = state.status || { models: [] };
    const shown = models.find(({ name }) => name === this.name);
    return shown || (models_hidden > 0 && this.about ? this.about.status : undefined);
  }

  drawHead() {
    const { model } = this;
    if (!model) {
      if (state.status && state.status.models_hidden === 0 && !this.missed) this.missing();
      return;
    }
    if (this.missed) { go(); return; }
    const speed = pace(model);
    const [value, unit] = [speed.value].flat();
    const about = this.about || {};
    const last = model.last;
    const fresh = h("div", {},
      h("div", { class: "head" }, h("h1", {}, model.name), chip(stateOf(model), STATES[stateOf(model)]),
        waits(model) && h("p", { class: "waits" }, waits(model)),
        h("p", { class: "sentence" }, count(model.parameters, "parameter") + ", " + whole(model.elements) + " elements, " + bytes(model.memory_bytes) +
          " here · epoch " + model.epoch +
          " · durable up to step " + whole(model.durable))),
      h("dl", { class: "tiles" },
        tile("Step", whole(model.decided), model.max_steps > 0 ? "of " + whole(model.max_steps) : null,
          model.max_steps > 0 && h("progress", { max: model.max_steps, value: model.decided, "aria-label": "Steps done" }),
          last ? "decided " + ago(last.at_ms) : null),
        tile("Pace", value, unit, under(speed.than, speed.kind)),
        tile("Loss scale", power(model.scale), null, [isPower(model.scale) && plain(model.scale), about.policy && "policy " + about.policy].filter(Boolean).join(", "),
          about.growth_interval && "grows after " + whole(about.growth_interval) + " clean steps: " + whole(about.growth_tracker) + " so far"),
        tile("Skipped", share(model.skipped, model.attempted), null, whole(model.skipped) + " of " + count(model.attempted, "step")),
        last && (last.loss !== undefined || last.metrics) && tile("Loss", measured(last.loss), null, told(last.metrics)),
        tile("Workers", whole(model.live), "of " + whole(model.world_size),
          model.state === "done" ? "training is over"
            : model.live < model.world_size ? under(count(model.world_size - model.live, "rank") + " not there", "down") : "all there")));
    this.head.childNodes.length === 2 ? morph(this.head, fresh) : this.head.replaceChildren(...fresh.childNodes);
  }

  /** A link to one skipped step, or to several that share a pixel: the plots then zoom in to show them apart. */
  pill([first, last, overflows, empties]) {
    const number = overflows + empties;
    if (number === 1)
      return h("a", { class: overflows > 0 ? "" : "empty", href: linkTo(this.name, first), title: overflows > 0 ? "overflow" : "no gradient that counts" },
        whole(first));
    return h("a", { href: linkTo(this.name, Math.round((first + last) / 2), "around") + "/" + Math.max(2, last - first) },
      whole(first) + " – " + whole(last), h("span", { class: "quiet" }, " (" + number + " steps)"));
  }

  drawTables() {
    const about = this.about;
    const acts = this.history ? this.history.acts.filter((act) => act.step > 1 || act.kind !== "epoch") : [];
    const skipped = this.history ? this.plots.skipped.slice(-60).reverse() : [];
    const newest = about ? Math.max(0, ...about.workers.map((worker) => worker.last_step)) : 0;
    const fresh = h("div", { class: "tables" },
      about && card("Workers", about.workers_hidden ? "too many for this page: ampctl status" : null,
        about.workers.length > 0 ? table("Workers", workerColumns(newest, this.model?.state === "done"), about.workers, { stack: true })
          : !about.workers_hidden && h("p", { class: "note" }, "Nobody has joined since this server started.")),
      card("Skipped steps", skipped.length === 0 ? null : (this.plots.window ? "of those shown above, " : "") + "newest first; each opens who, where and why",
        skipped.length > 0 ? h("ul", { class: "pills" }, skipped.map((entry) => h("li", {}, this.pill(entry))))
          : h("p", { class: "note" }, this.plots.window ? "None of those shown above." : "None.")),
      about && card("Checkpoints", about.checkpoints_hidden > 0 ? about.checkpoints_hidden + " older ones: ampctl checkpoints" : null,
        about.checkpoints.length > 0 ? table("Checkpoints", CHECKPOINT_COLUMNS, about.checkpoints, { stack: true })
          : h("p", { class: "note" }, "None yet.")),
      card("What operators and restarts did", null, acts.length > 0 ? table("Acts", ACT_COLUMNS, acts, { stack: true })
        : h("p", { class: "note" }, "Nothing.")));
    morph(this.tables, fresh);
  }
}

const workerColumns = (newest, done) => [
  ["Rank", (w) => String(w.rank)],
  ["Name", (w) => w.name, "wrap"],
  ["Address", (w) => w.peer ? h("code", {}, w.peer) : "", "wrap"],
  ["State", (w) => [
    w.quarantined ? chip("quarantined", "bad") : w.live ? chip("live", "good") : chip(w.left ? "has left" : "not there", w.left || done ? "" : "bad"),
    w.awaited && [" ", chip("awaited", "warn")], w.straggles && [" ", chip("slow", "warn")], w.nonfinite && [" ", chip("Inf or NaN", "bad")]]],
  ["Lag", (w) => w.last_step === 0 ? "–" : newest === w.last_step ? "0" : count(newest - w.last_step, "step"), "right"],
  ["Open step", (w) => w.wanted > 0 ? share(w.here, w.wanted).replace(".0 %", " %") + " here" : "–", "right"],
  ["Slow steps", (w) => [whole(w.slow_steps), under(w.slow_ms > 0 ? "others waited " + span(w.slow_ms) : null)], "right"],
  ["Pushes", (w) => whole(w.pushes), "right"],
  ["Overflows", (w) => whole(w.overflows), "right"],
  ["Last push", (w) => w.last_step > 0 ? "step " + whole(w.last_step) : "none yet", "right"],
  ["Joins", (w) => whole(w.joins), "right"],
];

const CHECKPOINT_COLUMNS = [
  ["Step", (c) => whole(c.step)],
  ["Epoch", (c) => String(c.epoch), "right"],
  ["Loss scale", (c) => c.scale > 0 ? power(c.scale) : "–", "right"],
  ["Size", (c) => [bytes(c.bytes), c.parts > 1 && under("of the file here")], "right"],
  ["Files", (c) => String(c.parts), "right"],
  ["Written", (c) => [ago(c.at_ms), under(moment(c.at_ms))], "right"],
  ["Folder", (c) => h("code", {}, c.path), "wrap"],
];

const rates = (a) => plain(a.learning_rate) + (a.old_learning_rate > 0 ? ", was " + plain(a.old_learning_rate) : "");
const ACT_COLUMNS = [
  ["What", (a) => [KINDS[a.kind] || a.kind, a.kind === "rate" && under(rates(a)), a.kind === "evict" && under("rank " + a.rank)].filter(Boolean)],
  ["From step", (a) => whole(a.step), "right"],
  ["Loss scale", (a) => a.old_scale === a.scale ? power(a.scale) : power(a.old_scale) + " → " + power(a.scale), "right"],
  ["Who", (a) => a.actor || "–", "wrap"],
  ["Why", (a) => a.reason || "–", "wrap"],
  ["When", (a) => [ago(a.at_ms), under(moment(a.at_ms))], "right"],
];

// ---- a step ----

class Step {
  constructor(name, step) {
    this.name = name;
    document.title = "step " + step + " · " + name + " · ampd";
    show("crumbs", h("a", { href: "#/" }, "Models"), h("a", { href: linkTo(name) }, name), h("span", {}, "step " + whole(step)));
    byId("view").replaceChildren(h("p", { class: "note" }, "Reading…"));
    this.listener = new Listener(null, (event, data) => event === "status" && this.take(data, step));
    this.read(step);
  }

  close() {
    this.listener.close();
    this.closed = true;
  }

  take(status, step) {
    takeStatus(status);
    if (this.lacks) this.read(step); // the server is back
  }

  async read(step) {
    this.lacks = false;
    const found = await ask(query("/api/step", { model: this.name, step })).catch((error) => {
      this.lacks = !error.status || error.status === 503;
      if (error instanceof NeedsToken) failed(error);
      else if (!this.closed) alone(sentence(error));
    });
    if (found && !this.closed) this.draw(found);
  }

  draw(step) {
    const applied = step.verdict === "applied";
    const cut = step.explanation.search(/ The scale /);
    const sentences = cut > 0 ? [step.explanation.slice(0, cut), step.explanation.slice(cut + 1)] : [step.explanation];
    show("view",
      h("div", { class: "head" }, h("h1", {}, "Step " + whole(step.step)), chip(applied ? "applied" : "skipped", applied ? "good" : "bad"),
        step.superseded && chip("rolled back later", "warn"),
        h("span", { class: "push small" }, h("a", { href: linkTo(this.name, step.step, "around") }, "Show it in the plots")),
        h("p", { class: "sentence" }, moment(step.at_ms) + " · " + ago(step.at_ms) + " · epoch " + step.epoch)),
      h("section", { class: "card callout" + (applied ? " applied" : "") }, sentences.map((text) => h("p", {}, text))),
      h("dl", { class: "tiles" },
        tile("Loss scale before", plain(step.old_scale), equals(step.old_scale)),
        tile("Loss scale after", plain(step.scale), equals(step.scale), changed(step.old_scale, step.scale)),
        applied ? tile("Gradient norm", measured(step.norm), null, "clip " + measured(step.clip))
          : tile("Not finite", whole(step.totals.inf + step.totals.nan), "values", whole(step.totals.inf) + " Inf, " + whole(step.totals.nan) + " NaN"),
        applied ? tile("Learning rate", digits(step.rate), null)
          : tile("Overflows in a row", whole(step.consecutive_overflows), null, "up to this step"),
        (step.loss !== undefined || step.metrics) && tile("Loss", measured(step.loss), null, told(step.metrics))),
      step.times && card("Where its time went", "since the step before", table("Times", TIME_COLUMNS, PARTS.map(([name, words]) =>
        ({ name, words, time: step.times[name], whole: PARTS.reduce((sum, [each]) => sum + step.times[each], 0) })),
        { stack: true })),
      step.overflows.length > 0 && card("Who and where", step.totals.rows > step.overflows.length
        ? "the first " + step.overflows.length + " of " + whole(step.totals.rows) : null,
        folded("Who and where", BLAME_COLUMNS, step.overflows)),
      step.policies.length > 0 && card("What each policy would have done", "steps " + whole(step.replayed_from) + " to " + whole(step.step) +
        " replayed, each taken to end as it did", table("Policies", POLICY_COLUMNS, step.policies,
        { stack: true, rowClass: (policy) => policy.own ? "own" : null })),
      step.contributors.length > 0 && card("Whose gradients counted", null, table("Contributors", [
        ["Rank", (c) => String(c.rank)], ["Worker", (c) => c.name || "–", "wrap"],
        ["Weight", (c) => digits(c.weight), "right"],
      ], step.contributors, { stack: true })));
  }
}

const changed = (before, after) => after < before ? "shrank to " + share(after, before).replace(/\.0+ /, " ")
  : after > before ? "grew " + digits(after / before) + " times" : "stayed";
const SOURCES = { worker: "its own gradient", sum: "the sum of finite gradients", range: "too large for the optimizer" };
const BLAME_COLUMNS = [
  ["Worker", (o) => o.source === "worker" ? (o.worker || "?") + " (rank " + o.rank + ")" : "all"],
  ["Where", (o) => SOURCES[o.source] || o.source],
  ["Parameter", (o) => h("code", {}, o.parameter), "wrap"],
  ["Inf", (o) => whole(o.inf), "right"],
  ["NaN", (o) => whole(o.nan), "right"],
  ["First at index", (o) => whole(o.first_index), "right"],
  ["Largest finite", (o) => o.largest >= 1000 ? whole(o.largest) : digits(o.largest), "right"],
];
const PARTS = [
  ["apply", "until the new version could be pulled"],
  ["pull", "until the last worker had pulled"],
  ["wait", "until the first push began: the workers computed"],
  ["push", "until the last push was whole"],
  ["vote", "until the step was decided"],
];
const TIME_COLUMNS = [
  ["Part", (t) => t.name],
  ["What", (t) => t.words, "wrap"],
  ["Time", (t) => seconds(t.time), "right"],
  ["Share", (t) => share(t.time, t.whole), "right"],
];
const POLICY_COLUMNS = [
  ["Policy", (p) => [p.policy, p.own ? [" ", chip("this model's", "info")] : null]],
  ["Scale before", (p) => power(p.before), "right"],
  ["after", (p) => power(p.after), "right"],
  ["It would", (p) => p.after < p.before ? chip("shrink it", "warn") : p.after > p.before ? chip("grow it", "info") : chip("keep it")],
  ["Sure?", (p) => p.uncertain ? "at that scale the step might have ended otherwise" : "yes", "wrap"],
];

// ---- the token ----

function askToken(text) {
  leave();
  tellLink("token", "a token is needed");
  const input = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const form = h("form", { class: "card login" }, h("h1", {}, "This server asks who looks"),
    h("p", { class: "quiet" }, "Paste a token with the role ", h("code", {}, "read"), ": ",
      h("code", {}, "ampctl token new read NAME"), " makes one; the line that it prints goes into the server's token file, and ",
      h("code", {}, "kill -HUP"), " makes ampd read that. It stays in this tab."),
    sessionStorage.getItem(TOKEN) && h("p", { class: "error", role: "alert" }, text),
    h("label", { for: "token" }, "Token"), input, h("div", {}, h("button", { class: "main" }, "Look")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, input.value.replace(/[^\x21-\x7e]/g, "")); // without invisible characters that were pasted
    go();
  });
  show("troubles");
  byId("view").replaceChildren(form);
  input.focus();
}

const NO_TOKEN = "That is no token: one has 16 to 1,024 letters, digits or -._~+/";
const NO_MODEL = "There is no model of this name on this server.";
/** What a page has words of its own for: no model, or no answer. */
const sentence = (error) => error.reason === "MODEL_NOT_FOUND" ? NO_MODEL : error.status ? error.message
  : "The server does not answer. This page goes on by itself when it does.";

function failed(error) {
  if (error instanceof NeedsToken) askToken(error.message);
  else if (byId("failed")) byId("failed").textContent = sentence(error);
  else byId("view").prepend(h("p", { id: "failed", class: "card note error", role: "alert" }, sentence(error)));
}

/** Shows only the reason why there is nothing else to show. */
function alone(text) {
  byId("view").replaceChildren(h("p", { class: "card note", role: "alert" }, text));
}

// ---- routes ----

function parse() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  if (parts[0] !== "model" || !parts[1]) return { model: null, step: null, around: null };
  const number = /^[1-9]\d{0,15}$/.test(parts[3] || "") ? Number(parts[3]) : null;
  const width = /^[1-9]\d{0,15}$/.test(parts[4] || "") ? Number(parts[4]) : 100;
  return { model: parts[1], step: parts[2] === "step" ? number : null, around: parts[2] === "around" && number ? [number, width] : null };
}

function leave() {
  if (state.view) state.view.close();
  state.view = null;
}

function go() {
  leave();
  state.route = parse();
  byId("view").replaceChildren();
  const { model, step, around } = state.route;
  state.view = model === null ? new Overview() : step === null ? new Model(model, around) : new Step(model, step);
  scrollTo(0, 0);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the route
  byId("main").focus();
});
addEventListener("hashchange", () => {
  go();
  byId("main").focus({ preventScroll: true }); // so that Tab goes on in the new content
});
go();
