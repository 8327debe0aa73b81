// How the page makes and changes its document. Texts come in by textContent alone (page.js).
"use strict";

import { whole } from "/plots.js";

const ROWS_SHOWN = 12; // rows of a long table that are shown; a click shows the others
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g; // characters that turn the direction of what follows them around

/** A text without these characters, each replaced: a name must not turn the sentence around that it stands in. */
const harmless = (child) => typeof child === "string" ? child.replace(TURNING, "\ufffd") : child;

/** Makes an element: h("a", {href: "#"}, "text", child, [more]). Children that are null or false are left out. */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false)
    .map(harmless));
  return element;
}

/** Changes `old` to what `fresh` is, node by node. Nodes that are the same stay, with their focus and scroll position. */
export function morph(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const wanted = [...fresh.childNodes];
  const present = [...old.childNodes];
  wanted.forEach((node, at) => {
    const there = present[at];
    if (!there) old.append(node);
    else if (there.nodeType !== node.nodeType || there.nodeName !== node.nodeName) there.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) { if (there.data !== node.data) there.data = node.data; }
    else morph(there, node);
  });
  present.slice(wanted.length).forEach((node) => node.remove());
}

export const byId = (id) => document.getElementById(id);

export function show(id, ...children) {
  const fresh = byId(id).cloneNode(false);
  fresh.append(...children.flat(3).filter(Boolean));
  morph(byId(id), fresh);
}

// ---- tables ----

/** A table. Its columns are [title, cell(row), class]; each cell has its title, too, for a narrow screen. */
export function table(caption, columns, rows, options = {}) {
  return h("div", { class: "scroll" }, h("table", { class: options.stack ? "stack" : null },
    h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, columns.map(([words, , kind]) => h("th", { scope: "col", class: kind || null }, words)))),
    h("tbody", {}, rows.map((row) => h("tr", { class: options.rowClass ? options.rowClass(row) : null },
      columns.map(([words, cell, kind], at) => {
        const inside = [cell(row)].flat(3).filter((part) => part !== null && part !== "" && part !== false);
        const name = [kind, inside.length === 0 ? "empty" : ""].filter(Boolean).join(" ") || null;
        return at === 0 ? h("th", { scope: "row", class: name }, inside)
          : h("td", { class: name, "data-label": words }, inside.length > 1 ? h("div", {}, inside) : inside);
      }))))));
}

/** A table that shows its first rows, and the others on demand: on a phone a row takes half of the screen. */
export function folded(caption, columns, rows) {
  const rest = rows.slice(ROWS_SHOWN);
  return [table(caption, columns, rows.slice(0, ROWS_SHOWN), { stack: true }),
    rest.length > 0 && h("details", {}, h("summary", {}, whole(rest.length) + " more"), table(caption + ", the others", columns, rest, { stack: true }))];
}

export const card = (title, about, ...content) => h("section", { class: "card" },
  h("header", {}, h("h2", {}, title), about && h("span", { class: "quiet" }, about)), ...content);
export const tile = (name, value, unit, ...under) => h("div", { class: "card tile" }, h("dt", {}, name),
  h("dd", {}, h("span", { class: "num" }, value), unit && h("span", { class: "unit" }, " " + unit),
    ...under.filter(Boolean).map((part) => typeof part === "string" ? h("div", { class: "under" }, part) : part)));
export const under = (text, kind) => text ? h("div", { class: "under " + (kind || "") }, text) : null;
export const chip = (text, kind) => h("span", { class: "chip " + (kind || "") }, text);
