"use strict";
// All models, one line each: those that need attention first, or in the order of a column. The address has the filter,
// the order and the part of the list that is shown.

const ORDER = ["failed", "not serving", "refusing", "no progress", "degraded", "restarted", "failing", "rejecting", "loading", "unloading", "ready", "dormant", "unloaded", "not loaded"];
const WITH_FIGURES = ["refusing", "no progress", "degraded", "restarted", "failing", "rejecting", "ready"];
const PART = { wide: 50, narrow: 12 };  // models on one part of the list: lines, or cards on phones
const isNarrow = matchMedia("(max-width: 700px)");

const known = value => value === undefined || value === null ? "–" : value;
const COLUMNS = [
  { id: "model", text: "Model", order: model => model.name },
  { id: "state", text: "State", order: model => ORDER.indexOf(stateOf(model)[0]) },
  { id: "requests", text: "Requests/s", number: true, order: model => model.now.requests, cell: model => formatNumber(model.now.requests || 0) },
  { id: "failures", text: "Failed/s", number: true, order: model => model.now.failures, cell: model => formatNumber(model.now.failures || 0), kind: model => model.now.failures ? "bad" : "minor" },
  { id: "p50", text: "Latency p50", short: "p50", number: true, order: model => model.now.p50, cell: model => formatMs(model.now.p50) },
  { id: "p95", text: "p95", number: true, order: model => model.now.p95, cell: model => formatMs(model.now.p95) },
  { id: "waiting", text: "Waiting", number: true, order: model => model.waiting, cell: model => model.waiting, kind: model => model.waiting ? "" : "minor" },
  { id: "running", text: "Running", number: true, order: model => model.running, cell: model => model.running, kind: model => model.running ? "" : "minor" },
  { id: "instances", text: "Instances", number: true, order: model => model.instances, cell: model => model.platform === "ensemble" || !model.instances ? "–" : `${model.serving}/${model.instances}${model.restarts ? ` ↻${model.restarts}` : ""}` },
  { id: "memory", text: "Memory", number: true, order: model => model.now.memory, cell: model => model.now.memory ? formatBytes(model.now.memory) : "–" },
  { id: "version", text: "Version", number: true, order: model => Number(model.version), cell: model => model.version || "–", kind: model => model.version === "1" ? "minor" : "" },
  { id: "python", text: "Python", number: true, order: model => versionOrder(model.python), cell: model => model.python || "–" },
  { id: "environment", text: "Environment", order: model => environmentOf(model), cell: model => environmentOf(model) || "–", title: model => model.environment, kind: () => "env soft" },
];

class ModelsPage {
  constructor(query) {
    this.rows = new Map();
    this.first = Math.max(0, Number(query.get("from")) - 1 || 0);
    this.sort = COLUMNS.find(column => column.id === query.get("sort")) || null;
    this.isDescending = query.get("order") === "descending";
    this.plots = new Plots("", ["Throughput", "Latency", "Queue", "Memory"]);
    this.filter = h("input", { type: "search", class: "grow", placeholder: "Filter by name, state, backend, Python or environment", "aria-label": "filter models", value: query.get("filter") || "", oninput: () => { this.first = 0; this.change(); } });
    this.shown = h("span", { class: "soft", role: "status" });
    this.heads = COLUMNS.map(column => h("th", { scope: "col", role: "columnheader", class: column.number ? "number" : "" }, h("button", { type: "button", class: "sort", onclick: () => this.sortBy(column) }, column.text)));
    this.orders = h("select", { "aria-label": "sort models", class: "narrow", onchange: () => { this.sort = COLUMNS.find(column => column.id === this.orders.value) || null; this.isDescending = Boolean(this.sort && this.sort.number); this.first = 0; this.change(); } }, h("option", { value: "" }, "Attention first"), COLUMNS.slice(1).map(column => h("option", { value: column.id }, column.short || column.text)));
    this.body = h("tbody", { role: "rowgroup", id: "models" });
    this.list = h("section", { class: "card tight list" }, h("table", { class: "models cards", role: "table", "aria-label": "models" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, this.heads)), this.body));
    this.earlier = h("button", { type: "button", onclick: () => this.turn(-1) }, "Previous");
    this.later = h("button", { type: "button", onclick: () => this.turn(1) }, "Next");
    this.place = h("span", { class: "soft" });
    this.parts = h("nav", { class: "tools parts", "aria-label": "parts of the list" }, this.place, this.earlier, this.later);
    this.dormant = h("p", { class: "note", hidden: true }, "A dormant model is loaded by its first request.");
    this.nothing = h("p", { class: "empty" });
    this.node = h("div", {}, h("div", { class: "tools" }, h("h1", {}, "Models"), this.plots.chooser()), this.plots.node, h("div", { class: "tools" }, this.filter, this.orders, this.shown), this.list, this.parts, this.dormant);
    this.onResize = () => this.update(app.state);
    isNarrow.addEventListener("change", this.onResize);
    app.listAddress = location.hash || "#/";
    if (app.state) this.update(app.state);
  }

  // A click on a header sorts by it, a second one the other way, a third one as at the beginning.
  sortBy(column) {
    const starts = Boolean(column.number);  // with the largest number, but the first name
    if (this.sort !== column) [this.sort, this.isDescending] = [column, starts];
    else if (this.isDescending === starts) this.isDescending = !starts;
    else [this.sort, this.isDescending] = [null, false];
    this.first = 0;
    this.change();
  }

  turn(step) {
    this.first = Math.max(0, this.first + step * this.size);
    this.change();
    if (this.list.getBoundingClientRect().top < 0) this.list.scrollIntoView();
  }

  change() {
    const query = new URLSearchParams();
    if (this.filter.value) query.set("filter", this.filter.value);
    if (this.sort) query.set("sort", this.sort.id);
    if (this.sort && this.isDescending) query.set("order", "descending");
    if (this.first) query.set("from", this.first + 1);
    app.listAddress = `#/${String(query) && `?${query}`}`;
    history.replaceState(null, "", app.listAddress);
    this.update(app.state);
  }

  get size() {
    return isNarrow.matches ? PART.narrow : PART.wide;
  }

  chosen(models) {
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = models.map(model => ({ model, status: stateOf(model) })).filter(({ model, status }) => {
      const text = `${model.name} ${status[0]} ${model.backend} ${model.python} ${model.environment} ${model.reason}`.toLowerCase();
      return wanted.every(word => text.includes(word));
    });
    const attention = (a, b) => ORDER.indexOf(a.status[0]) - ORDER.indexOf(b.status[0]) || byName(a.model, b.model);
    const { sort } = this;
    if (!sort) return found.sort(attention);
    const sign = this.isDescending ? -1 : 1;
    return found.sort((a, b) => {
      const [x, y] = [sort.order(a.model), sort.order(b.model)];
      const isMissing = value => value === undefined || value === "" || Number.isNaN(value);
      if (isMissing(x) || isMissing(y)) return isMissing(x) - isMissing(y) || byName(a.model, b.model);  // last in both orders
      return (x < y ? -sign : x > y ? sign : 0) || byName(a.model, b.model);
    });
  }

  update(state) {
    if (!state) return;
    const found = this.chosen(state.models);
    if (this.first >= found.length) this.first = Math.max(0, Math.floor((found.length - 1) / this.size) * this.size);
    const shown = found.slice(this.first, this.first + this.size);
    const all = count(state.models.length, "model");
    setText(this.shown, this.filter.value.trim() ? `${found.length.toLocaleString("en")} of ${all}` : all);
    this.parts.hidden = found.length <= this.size;
    setText(this.place, `${this.first + 1} to ${this.first + shown.length} of ${found.length.toLocaleString("en")}`);
    this.earlier.disabled = !this.first;
    this.later.disabled = this.first + this.size >= found.length;
    this.orders.value = this.sort ? this.sort.id : "";
    COLUMNS.forEach((column, i) => {
      if (column === this.sort) this.heads[i].setAttribute("aria-sort", this.isDescending ? "descending" : "ascending"); else this.heads[i].removeAttribute("aria-sort");
    });
    const seen = new Set();
    let before = null;
    for (const { model, status } of shown) {
      const key = `${model.name}\n${model.version}`;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, row = new ModelRow(model));
      row.update(model, status, state.server.recent_seconds);
      const place = before ? before.nextSibling : this.body.firstChild;
      if (place !== row.node) this.body.insertBefore(row.node, place);
      before = row.node;
    }
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.node.remove();
        this.rows.delete(key);
      }
    }
    setText(this.nothing, state.models.length ? "No model matches the filter." : "The repositories have no models.");
    this.dormant.hidden = !shown.some(({ status }) => status[0] === "dormant");
    if (!shown.length) this.list.append(this.nothing); else this.nothing.remove();
  }

  recolor() {
    this.plots.recolor();
  }

  close() {
    isNarrow.removeEventListener("change", this.onResize);
    this.plots.close();
  }
}

class ModelRow {
  constructor(model) {
    this.model = model;
    this.name = h("td", { role: "cell", class: "name" }, h("a", { href: modelHash(model) }, model.name));
    this.pill = h("span", { class: "pill" });
    this.note = h("div", { class: "soft small" });
    this.state = h("td", { role: "cell", class: "state" }, this.pill, this.note);
    this.figures = COLUMNS.slice(2).map(column => h("td", { role: "cell", "data-label": column.short || column.text }, h("span")));
    this.reason = h("td", { role: "cell", class: "reason", colspan: String(COLUMNS.length - 2) });
    this.cause = h("span", { class: "line" });
    this.hint = h("div", { class: "hint" });
    this.more = h("button", { type: "button", class: "link", "aria-expanded": "false", onclick: () => this.toggle() }, "details");
    this.reason.append(h("div", { class: "brief" }, this.cause, this.more), this.hint);
    this.node = h("tr", { role: "row", onclick: event => this.open(event), onauxclick: event => { if (event.button === 1) this.open(event); } }, this.name, this.state);
  }

  // The whole line is a link, except what has a use of its own.
  open(event) {
    if (event.target.closest("a, button, pre") || String(getSelection())) return;
    if (event.button === 1 || event.ctrlKey || event.metaKey) window.open(modelHash(this.model));
    else location.hash = modelHash(this.model);
  }

  update(model, [text, kind], seconds) {
    this.model = model;
    setText(this.pill, text);
    setClass(this.pill, `pill ${kind}`);
    setText(this.note, isServing(model) ? troublesText(model.troubles, seconds) : "");
    this.state.title = text === "refusing" || text === "no progress" ? sentenceOf(model.reason).cause : "";
    const isTold = !WITH_FIGURES.includes(text) && Boolean(model.reason) && model.reason !== "unloaded";
    if (isTold) {
      const { cause, hint } = sentenceOf(model.reason);
      setText(this.cause, cause);
      setText(this.hint, hint);
      this.more.hidden = text !== "failed" && !model.is_reason_longer;
      if (this.reason.parentNode !== this.node) { this.figures.forEach(cell => cell.remove()); this.node.append(this.reason); }
      return;
    }
    if (this.figures[0].parentNode !== this.node) { this.reason.remove(); this.node.append(...this.figures); }
    COLUMNS.slice(2).forEach((column, i) => {
      const value = String(model.state === "READY" || column.id === "version" ? known(column.cell(model)) : "");
      setText(this.figures[i].firstChild, value);
      setClass(this.figures[i], `${column.number ? "number" : ""} ${column.kind ? column.kind(model) : ""} ${value === "" || value === "–" ? "blank" : ""}`);
      if (column.title) this.figures[i].title = column.title(model);
    });
  }

  async toggle() {
    const isOpen = this.more.getAttribute("aria-expanded") === "true";
    this.more.setAttribute("aria-expanded", String(!isOpen));
    setText(this.more, isOpen ? "details" : "less");
    if (isOpen) {
      this.whole.remove();
      return;
    }
    this.whole = h("pre", { tabindex: "0" }, this.model.reason);
    this.reason.append(this.whole);
    try { this.whole.textContent = (await getDocument("model", this.model.name, this.model.version)).reason; } catch { /* the short reason stays */ }
  }
}

function byName(a, b) {
  return a.name < b.name ? -1 : a.name > b.name ? 1 : a.version - b.version;
}

function versionOrder(text) {
  return text ? text.split(".").reduce((all, part) => all * 1000 + (parseInt(part, 10) || 0), 0) : undefined;
}

function environmentOf(model) {
  return model.platform === "ensemble" ? "ensemble" : shortPath(model.environment);
}

// "3 restarts, 12 failed in 5 min"; empty if nothing went wrong.
function troublesText({ restarts, failed, rejected }, seconds) {
  const parts = [restarts ? count(restarts, "restart") : "", failed ? `${formatNumber(failed)} failed` : "", rejected ? `${formatNumber(rejected)} rejected` : ""].filter(Boolean);
  return parts.length ? `${parts.join(", ")} in ${Math.round(seconds / 60)} min` : "";
}

// The first sentence of a reason, without the code before it; and what may have been meant, which is never cut.
function sentenceOf(reason) {
  const text = reason.replace(/^(Internal|Invalid argument|Not found|Unavailable|Unsupported|Unknown): /, "");
  const [, whole, hint = ""] = /^(.*?)(?:; (did you mean .*))?$/s.exec(text);
  for (const end of whole.matchAll(/[.;]\s+(?=\S)| \(in Python /g)) if (end.index > 30) return { cause: whole.slice(0, end.index), hint };
  return { cause: whole, hint };
}

function shortPath(text) {
  return text.startsWith("/") ? text.split("/").slice(-2).join("/") : text;
}

class ActivityPage {
  constructor() {
    this.plots = new Plots("", null, { isLarge: true });
    this.processes = h("section", { class: "card tight" });
    this.node = h("div", {}, h("div", { class: "tools" }, h("h1", {}, "Activity"), this.plots.chooser()), this.plots.node, this.processes, h("p", { class: "note" }, "The server keeps one hour, a sample every five seconds. A request of an ensemble counts for it and for the models of its steps."));
    if (app.state) this.update(app.state);
  }

  update({ processes }) {
    const text = JSON.stringify(processes);
    if (text === this.seen) return;
    this.seen = text;
    const extra = [...new Set(processes.flatMap(each => Object.keys(each)))].filter(name => !["role", "pid", "memory", "cpu"].includes(name));
    this.processes.replaceChildren(table("processes of the server", [{ text: "Process of the server", full: true }, { text: "Process id", number: true }, { text: "Memory", number: true }, { text: "CPU", number: true }, ...extra.map(name => ({ text: name.replaceAll("_", " "), number: true }))],
      processes.map(each => [h("b", {}, each.role), each.pid, formatBytes(each.memory), each.cpu === null ? "–" : `${Math.round(each.cpu * 100)} %`, ...extra.map(name => name in each ? formatNumber(each[name]) : "–")])));
  }

  recolor() {
    this.plots.recolor();
  }

  close() {
    this.plots.close();
  }
}
