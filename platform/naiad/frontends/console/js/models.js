"use strict";
// All models, one line each, failed ones first.

const ORDER = ["failed", "not serving", "refusing", "degraded", "loading", "unloading", "ready", "dormant", "unloaded", "not loaded"];
const COLUMNS = [["Model", ""], ["State", ""], ["Requests/s", "number"], ["Latency p50", "number"], ["p95", "number"], ["Waiting", "number"], ["Running", "number"], ["Instances", "number"], ["Memory", "number"], ["Environment", ""]];

class ModelsPage {
  constructor() {
    this.rows = new Map();
    this.plots = new Plots("", ["Throughput", "Latency", "Queue", "Memory"]);
    this.filter = h("input", { type: "search", class: "grow", placeholder: "Filter by name, state, backend or environment", "aria-label": "filter models", value: sessionStorage.getItem("naiad.filter") || "", oninput: () => { sessionStorage.setItem("naiad.filter", this.filter.value); this.update(app.state); } });
    this.shown = h("span", { class: "soft", role: "status" });
    this.body = h("tbody", { role: "rowgroup", id: "models" });
    this.list = h("section", { class: "card tight" }, h("div", { class: "scroll", role: "region", "aria-label": "models", tabindex: "0" }, h("table", { class: "models cards", role: "table", "aria-label": "models" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, COLUMNS.map(([text, kind]) => h("th", { scope: "col", role: "columnheader", class: kind }, text)))), this.body)));
    this.dormant = h("p", { class: "note", hidden: true }, "A dormant model is loaded by its first request.");
    this.node = h("div", {}, h("div", { class: "tools" }, h("h1", {}, "Models"), this.plots.chooser()), this.plots.node, h("div", { class: "tools" }, this.filter, this.shown), this.list, this.dormant);
    if (app.state) this.update(app.state);
  }

  update(state) {
    if (!state) return;
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = state.models.map(model => ({ model, status: stateOf(model) })).filter(({ model, status }) => {
      const text = `${model.name} ${status[0]} ${model.backend} ${model.environment} ${model.reason}`.toLowerCase();
      return wanted.every(word => text.includes(word));
    });
    shown.sort((a, b) => ORDER.indexOf(a.status[0]) - ORDER.indexOf(b.status[0]) || (a.model.name < b.model.name ? -1 : a.model.name > b.model.name ? 1 : a.model.version - b.model.version));
    setText(this.shown, wanted.length ? `${shown.length} of ${count(state.models.length, "model")}` : count(state.models.length, "model"));
    const seen = new Set();
    let before = null;
    for (const { model, status } of shown) {
      const key = `${model.name}\n${model.version}`;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, row = new ModelRow(model));
      row.update(model, status);
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
    this.nothing ||= h("p", { class: "empty" });
    setText(this.nothing, state.models.length ? "No model matches the filter." : "The repositories have no models.");
    this.dormant.hidden = !shown.some(({ status }) => status[0] === "dormant");
    if (!shown.length) this.list.append(this.nothing); else this.nothing.remove();
  }

  recolor() {
    this.plots.recolor();
  }

  close() {
    this.plots.close();
  }
}

class ModelRow {
  constructor(model) {
    this.model = model;
    const cell = (label, kind = "") => h("td", { role: "cell", class: kind, "data-label": label }, h("span"));
    this.name = h("td", { role: "cell", class: "name" }, h("a", { href: modelHash(model) }, model.name), model.version && model.version !== "1" ? h("span", { class: "soft" }, ` v${model.version}`) : null);
    this.state = h("td", { role: "cell", class: "state" }, h("span", { class: "pill" }));
    this.figures = COLUMNS.slice(2, 9).map(([label, kind]) => cell(label.replace("Latency ", ""), kind));
    this.environment = h("td", { role: "cell", class: "env soft", "data-label": "Environment" }, h("span"));
    this.reason = h("td", { role: "cell", class: "reason", colspan: String(COLUMNS.length - 2) });
    this.reasonText = h("span", { class: "line" });
    this.more = h("button", { type: "button", class: "link", "aria-expanded": "false", onclick: () => this.toggle() }, "details");
    this.reason.append(h("div", { class: "brief" }, this.reasonText, this.more));
    this.node = h("tr", { role: "row" }, this.name, this.state);
  }

  update(model, [text, kind]) {
    this.model = model;
    setText(this.state.firstChild, text);
    setClass(this.state.firstChild, `pill ${kind}`);
    this.state.title = text === "refusing" ? sentenceOf(model.reason) : "";
    const isTold = !["ready", "degraded", "refusing"].includes(text) && Boolean(model.reason) && model.reason !== "unloaded";
    if (isTold) {
      setText(this.reasonText, sentenceOf(model.reason));
      this.more.hidden = text !== "failed" && !model.is_reason_longer;
      if (this.reason.parentNode !== this.node) { this.figures.concat(this.environment).forEach(cell => cell.remove()); this.node.append(this.reason); }
      return;
    }
    if (this.environment.parentNode !== this.node) { this.reason.remove(); this.node.append(...this.figures, this.environment); }
    const { now } = model;
    const isReady = model.state === "READY";
    const values = isReady ? [formatNumber(now.requests || 0), now.p50 === undefined ? "–" : formatMs(now.p50), now.p95 === undefined ? "–" : formatMs(now.p95), model.waiting, model.running, model.platform === "ensemble" || !model.instances ? "–" : `${model.serving}/${model.instances}${model.restarts ? ` ↻${model.restarts}` : ""}`, now.memory ? formatBytes(now.memory) : "–"] : new Array(7).fill("");
    this.figures.forEach((cell, i) => {
      setText(cell.firstChild, values[i]);
      cell.classList.toggle("blank", values[i] === "" || values[i] === "–");
    });
    const environment = model.platform === "ensemble" ? "ensemble" : shortPath(model.environment);
    setText(this.environment.firstChild, environment);
    this.environment.title = model.environment;
    this.environment.classList.toggle("blank", !environment);
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

// The first sentence of a reason, without the code before it.
function sentenceOf(reason) {
  const text = reason.replace(/^(Internal|Invalid argument|Not found|Unavailable|Unsupported|Unknown): /, "");
  for (const end of text.matchAll(/[.;]\s+(?=\S)| \(in Python /g)) if (end.index > 30) return text.slice(0, end.index);
  return text;
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
    this.processes.replaceChildren(table("processes of the server", ["Process of the server", { text: "Process id", number: true }, { text: "Memory", number: true }, { text: "CPU", number: true }, ...extra.map(name => ({ text: name.replaceAll("_", " "), number: true }))],
      processes.map(each => [h("b", {}, each.role), each.pid, formatBytes(each.memory), each.cpu === null ? "–" : `${Math.round(each.cpu * 100)} %`, ...extra.map(name => name in each ? formatNumber(each[name]) : "–")])));
  }

  recolor() {
    this.plots.recolor();
  }

  close() {
    this.plots.close();
  }
}
