"use strict";
// Makes nodes. Text is always text: nothing here parses markup, so that names of models cannot become elements.

function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "value") node.value = value;
    else if (name === "width") node.style.width = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) node.append(child instanceof Node ? child : String(child));
  }
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  append(node, children);
  return node;
}

const get = id => document.getElementById(id);

// Replaces text only where it differs, so that selected text and the focus stay.
function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

function table(label, heads, rows, kind = "") {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: `cards ${kind}`, role: "table", "aria-label": label },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map(head => h("th", { scope: "col", role: "columnheader", class: head.number ? "number" : "" }, head.text || head)))),
      h("tbody", { role: "rowgroup" }, rows.map(cells => h("tr", { role: "row" }, cells.map((cell, i) => {
        const head = heads[i];
        return h("td", { role: "cell", class: `${head.number ? "number" : ""} ${head.full ? "full" : ""}`, "data-label": head.full ? null : head.text || head }, h("span", {}, cell));
      }))))));
}

function facts(pairs) {
  return h("dl", { class: "kv" }, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function pill(text, kind = "") {
  return h("span", { class: `pill ${kind}` }, text);
}

function copyable(text) {
  const button = h("button", { type: "button", onclick: () => copy(text, button) }, "Copy");
  return h("div", { class: "copy" }, h("pre", { tabindex: "0" }, text), button);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    const range = document.createRange();  // the clipboard needs HTTPS or localhost: select the text instead
    range.selectNodeContents(button.previousSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// -- figures ------------------------------------------------------------------------------------------------------------

function formatNumber(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 10 ? 1 : 2);
}

function formatBytes(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  // The units and digits of the command line (`config/server/quantities.py`).
  if (value < 999.5) return `${Math.round(value)} B`;
  for (const [unit, size] of [["kB", 1e3], ["MB", 1e6]]) if (value < 999.5 * size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  return `${(value / 1e9).toFixed(1)} GB`;
}

// Three digits, and seconds from one second on. *like* is a duration beside it, whose unit and decimals it gets.
function formatMs(value, like = value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  const [unit, size] = like >= 999.5 ? ["s", 1e3] : ["ms", 1];
  const decimals = like / size >= 99.95 ? 0 : like / size >= 9.995 ? 1 : 2;
  return `${(value / size).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })} ${unit}`;
}

function formatCores(value) {
  return value === null || value === undefined ? "–" : value >= 10 ? value.toFixed(0) : value.toFixed(value ? 2 : 0);
}

const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };

// The time of day, of milliseconds since the epoch.
function formatClock(time, parts = CLOCK) {
  return new Date(time).toLocaleTimeString([], parts);
}

function formatAge(seconds) {
  for (const [unit, size] of [["days", 86400], ["hours", 3600], ["minutes", 60]]) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.round(seconds)} seconds`;
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
