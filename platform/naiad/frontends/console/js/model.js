"use strict";
// Everything about one version of a model.

const modelHash = (model, tab = "") => `#/model/${pathOf(model.name, model.version || "0", ...(tab ? [tab] : []))}`;
const REASON_TITLES = { refusing: "What it refuses", "no progress": "What makes no progress" };
const INSTANCE_KINDS = { ready: "good", hung: "bad", restarting: "busy", "given up": "bad" };
const DEMAND_NOTES = {
  dormant: "The model is dormant: its first request loads it.",
  loading: "A request needs the model, and it is being loaded.",
};

class ModelPage {
  constructor(name, version, tab) {
    this.name = name;
    this.version = version === "0" ? "" : version;
    this.tab = tab || "overview";
    this.parts = {};
    this.state = h("span", { class: "pill" });
    this.controls = h("span", { class: "tools" });
    this.controls.style.margin = "0";
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "about the model" });
    this.body = h("div", { role: "tabpanel", id: "panel" });
    this.reason = h("div");
    this.health = h("p", { class: "warning", role: "status", hidden: true });
    this.said = h("p", { class: "note", role: "status" });
    this.node = h("div", {}, h("p", { class: "note" }, h("a", { href: app.listAddress }, "← All models")),
      h("div", { class: "tools" }, h("h1", {}, name, this.version ? h("span", { class: "soft" }, ` version ${this.version}`) : null, " ", this.state), this.controls), this.health, this.said, this.reason, this.tabs, this.body);
    this.load();
  }

  async load() {
    try {
      const found = await getDocument("model", this.name, this.version);
      let isOther = !this.model || this.model.state !== found.state || JSON.stringify(this.model.inputs) !== JSON.stringify(found.inputs);
      this.model = found;
      isOther ||= String(this.uses()) !== this.shownUses; // the state of the server, which has them, may come later than the model
      this.showState();
      if (isOther) this.rebuild(); else if (this.parts.overview) this.fillOverview();
    } catch (error) {
      if (!this.model) this.body.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
    }
    if (!this.isClosed) this.timer = setTimeout(() => this.load(), POLL_MS);
  }

  // Apart from `rebuild`, which discards what was typed: a request from this page may change a dormant model's state.
  showState() {
    const [text, kind] = stateOf(this.model);
    setText(this.state, text);
    setClass(this.state, `pill ${kind}`);
    const { reason, condition, troubles, recent_seconds: seconds } = this.model;
    const shownReason = reason && reason !== "unloaded" ? reason : "";
    if (shownReason !== this.shownReason) {
      this.shownReason = shownReason;
      this.reason.replaceChildren(...shownReason ? [h("section", { class: "card" }, h("h2", {}, REASON_TITLES[condition] || "Why it is not ready"), h("pre", { class: "error", tabindex: "0" }, shownReason))] : []);
    }
    const trouble = isServing(this.model) ? troublesText(troubles, seconds) : "";
    this.health.hidden = !trouble;
    if (trouble && trouble !== this.shownTroubles) this.health.replaceChildren(`${trouble}. `, h("button", { type: "button", class: "link", onclick: () => this.open("log") }, "The log has the reasons"));
    this.shownTroubles = trouble;
  }

  open(id) {
    history.replaceState(null, "", modelHash(this, id));
    this.choose(id);
  }

  rebuild() {
    const { model } = this;
    this.showControls();
    const isReady = model.state === "READY";
    const uses = this.uses();
    this.shownUses = String(uses);
    const wanted = [["overview", "Overview"], ...(isReady ? [["request", "Request"]] : []), ...(uses.includes("chat") ? [["chat", "Chat"]] : []), ...(uses.includes("embed") ? [["embed", "Embeddings"]] : []),
      ["log", "Log"], ["configuration", "Configuration"], ["explain", "Explain"]];
    this.closeParts();
    this.tabs.replaceChildren(...wanted.map(([id, label]) => h("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": "panel", onclick: () => this.open(id), onkeydown: event => this.onKey(event) }, label)));
    this.choose(wanted.some(([id]) => id === this.tab) ? this.tab : "overview");
  }

  uses() {
    const entry = ((app.state || {}).models || []).find(each => each.name === this.name && each.version === this.version);
    return this.model.state === "READY" && entry ? entry.uses : [];
  }

  onKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...this.tabs.children];
    const next = all[(all.indexOf(event.target) + step + all.length) % all.length];
    next.click();
    next.focus();
  }

  choose(id) {
    this.tab = id;
    for (const tab of this.tabs.children) {
      const isChosen = tab.id === `tab-${id}`;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      // On phones the tabs are a row that scrolls.
      if (isChosen && this.tabs.scrollWidth > this.tabs.clientWidth) tab.scrollIntoView({ inline: "nearest", block: "nearest" });
    }
    this.body.setAttribute("aria-labelledby", `tab-${id}`);
    const make = { overview: () => this.overview(), request: () => new RequestForm(this.model), chat: () => new Chat(this.model), embed: () => new Similarity(this.model), log: () => new LogView(this.name), configuration: () => this.configuration(), explain: () => this.explain() };
    this.parts[id] ||= make[id]();
    this.body.replaceChildren(this.parts[id].node);
    if (this.parts[id].shown) this.parts[id].shown();
  }

  // -- control ---------------------------------------------------------------------------------------------------------

  showControls() {
    if (!app.state || !app.state.server.can_control) return;
    const isReady = this.model.state === "READY";
    const button = (label, action, kind = "") => h("button", { type: "button", class: kind, onclick: () => this.change(label, action) }, label);
    this.controls.replaceChildren(...(isReady ? [button("Reload", "load"), button("Unload", "unload", "danger")] : [button("Load", "load", "main")]));
  }

  async change(label, action) {
    if (action === "unload" && !await confirmed(`Unload ${this.name}?`, "Requests to it fail until it is loaded again.", "Unload")) return;
    this.controls.querySelectorAll("button").forEach(button => { button.disabled = true; });
    setText(this.said, `${label}: in progress …`);
    setClass(this.said, "note");
    const begun = performance.now();
    try {
      await control(action, this.name);
      setText(this.said, `${label}: done in ${formatMs(performance.now() - begun)}`);
    } catch (error) {
      setText(this.said, error.message);
      setClass(this.said, "error");
    }
    this.controls.querySelectorAll("button").forEach(button => { button.disabled = false; });
    await poll();
    clearTimeout(this.timer);
    this.load();
  }

  // -- overview --------------------------------------------------------------------------------------------------------

  overview() {
    const isEnsemble = Boolean(this.model.config && this.model.config.ensemble_scheduling);
    // An ensemble has no process.
    this.plots = new Plots(this.name, isEnsemble ? PLOTS.map(spec => spec.title).filter(title => title !== "Memory" && title !== "Processor") : null, { level: "h3", isOfModel: true });
    this.instances = h("section", { class: "card tight" });
    this.environment = h("section", { class: "card" });
    this.tensors = h("section", { class: "card" });
    this.packages = h("details", { ontoggle: () => this.showPackages() }, h("summary", {}, "Packages"));
    const isLoaded = this.model.state === "READY";
    const node = h("div", {}, isLoaded ? [h("div", { class: "tools" }, h("h2", {}, "History"), this.plots.chooser()), this.plots.node, this.instances] : null, h("div", { class: "two" }, this.environment, this.tensors));
    const part = { node, recolor: () => this.plots.recolor(), close: () => this.plots.close() };
    this.parts.overview = part;
    this.fillOverview();
    this.tensors.append(h("h2", {}, "Inputs and outputs"), this.model.inputs.length || this.model.outputs.length ? table("inputs and outputs", [{ text: "Tensor", full: true }, "Datatype", "Shape", ""], [
      ...this.model.inputs.map(tensor => [h("b", {}, tensor.name), tensor.datatype, `[${tensor.shape.join(", ")}]`, tensor.required ? "input" : "optional input"]),
      ...this.model.outputs.map(tensor => [h("b", {}, tensor.name), tensor.datatype, `[${tensor.shape.join(", ")}]`, "output"])]) : h("p", { class: "note" }, "They are known once the model is loaded."));
    return part;
  }

  fillOverview() {
    const { instances, environment, demand } = this.model;
    const text = JSON.stringify([instances, demand]);
    if (text !== this.seenInstances) {
      this.seenInstances = text;
      this.instances.replaceChildren(instances.length ? table("instances", [{ text: "Instance", full: true }, "State", { text: "Process", number: true }, { text: "Memory", number: true }, { text: "CPU", number: true }, "Restarts"], instances.map(each => [
        h("b", {}, each.name), each.stalled_seconds && each.state === "ready" ? pill("no progress", "busy") : pill(each.state, INSTANCE_KINDS[each.state]), each.pid || "none", formatBytes(each.memory), each.cpu === null ? "–" : `${Math.round(each.cpu * 100)} %`,
        Object.entries(each.restarts).map(([reason, times]) => `${times} × ${reason}`).join(", ") || "none"]), "instances")
        : h("p", { class: "empty" }, this.model.config && this.model.config.ensemble_scheduling ? "An ensemble has no instances: other models run its steps." : DEMAND_NOTES[demand] || "No instance runs."));
    }
    if (this.environment.childElementCount) return;
    this.environment.append(h("h2", {}, "Environment"), environment ? facts([["source", environment.source], ["chosen by", environment.origin], ["Python", environment.python], ["interpreter", environment.interpreter && h("code", {}, environment.interpreter)], ["numpy", environment.numpy], ["digest", environment.digest && h("code", {}, `sha256:${environment.digest}`)], ["size", environment.size === null ? "" : formatBytes(environment.size)]]) : h("p", { class: "note" }, this.model.config && this.model.config.ensemble_scheduling ? "An ensemble runs no code: each model of its steps has its own environment." : "No environment was chosen: the model was not loaded."));
    if (environment && environment.interpreter) this.environment.append(this.packages);
  }

  async showPackages() {
    if (!this.packages.open || this.packages.childElementCount > 1) return;
    try {
      const found = await getDocument("packages", this.name, this.version);
      this.packages.append(found.length ? h("ul", { class: "tree mono" }, found.map(each => h("li", {}, `${each.name} ${each.version}`, each.source === "conda" ? h("span", { class: "soft" }, " conda") : null))) : h("p", { class: "note" }, "None is installed."));
    } catch (error) {
      this.packages.append(h("p", { class: "error" }, error.message));
    }
  }

  // -- configuration and explanation -----------------------------------------------------------------------------------

  configuration() {
    const { config, files } = this.model;
    const sections = Object.entries(files || {}).map(([name, text]) => h("details", { class: "card", open: true }, h("summary", {}, name), copyable(text)));
    if (config) sections.unshift(h("details", { class: "card", open: true }, h("summary", {}, "Effective configuration"), copyable(JSON.stringify(config, null, 2))));
    return { node: h("div", {}, sections.length ? sections : h("p", { class: "empty" }, "No configuration was read.")) };
  }

  explain() {
    const found = this.model.resolution;
    if (!found) return { node: h("p", { class: "empty" }, this.model.config && this.model.config.ensemble_scheduling ? "An ensemble is run by the models of its steps." : "Nothing was decided for this model: it was not loaded.") };
    return { node: h("section", { class: "card" }, h("h2", {}, "What runs the model, and why"),
      h("ul", { class: "steps" }, found.steps.map(step => h("li", {}, h("details", { open: true }, h("summary", {}, h("b", {}, step.subject), " ", h("span", { class: "mono" }, step.choice)),
        h("div", { class: "soft" }, step.reason), step.searched.length ? h("ul", { class: "tree mono" }, step.searched.map(each => h("li", { class: each.found ? "found" : "missing" }, each.path, h("span", { class: "hidden" }, each.found ? " found" : " not found")))) : null)))),
      found.notices.map(notice => h("p", { class: "note" }, notice)), h("p", { class: "note" }, "The same in a terminal: ", h("code", {}, `naiad explain ${this.name} --model-repository=…`))) };
  }

  recolor() {
    for (const part of Object.values(this.parts)) if (part.recolor) part.recolor();
  }

  closeParts() {
    for (const part of Object.values(this.parts)) if (part.close) part.close();
    this.parts = {};
    this.seenInstances = "";
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.closeParts();
  }
}

// The state of a model in a word, and its color: a model that serves, but not well, is neither ready nor failed.
function stateOf(model) {
  if (isFailed(model)) return ["failed", "bad"];
  if (model.state === "READY" && model.demand === "dormant") return ["dormant", ""];
  if (model.state === "READY" && model.demand === "loading") return ["loading", "busy"];
  if (model.state === "READY" && model.condition === "not serving") return [model.condition, "bad"];
  if (model.state === "READY" && model.condition && model.condition !== "ready") return [model.condition, "busy"];
  if (model.state === "READY") {
    const { restarts, failed, rejected } = model.troubles;
    const trouble = restarts ? "restarted" : failed ? "failing" : rejected ? "rejecting" : "";
    return trouble ? [trouble, "busy"] : ["ready", "good"];
  }
  if (model.state === "LOADING" || model.state === "UNLOADING") return [model.state.toLowerCase(), "busy"];
  return [model.state === "UNAVAILABLE" ? "unloaded" : "not loaded", ""];
}

function confirmed(question, detail, action) {
  return new Promise(resolve => {
    const dialog = h("dialog", { "aria-label": question }, h("h2", {}, question), h("p", {}, detail), h("div", { class: "tools" }, h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"), h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, action)));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// The last lines of the log about a model, live.
class LogView {
  constructor(name) {
    this.name = name;
    this.last = 0;
    this.lines = h("div", { class: "log mono", role: "log", tabindex: "0", "aria-label": `log of ${name}`, "aria-live": "off" });
    this.filter = h("input", { type: "search", class: "end", placeholder: "Filter lines", "aria-label": "filter lines", oninput: () => this.applyFilter() });
    this.node = h("section", { class: "card" }, h("div", { class: "tools" }, h("h2", {}, "Log"), h("span", { class: "note" }, "the last 200 lines, live"), this.filter), this.lines);
    this.follow();
  }

  async follow() {
    try {
      const found = document.hidden ? [] : await getDocument("log", this.name, String(this.last));
      if (found.length) this.add(found);
      else if (!this.last) this.lines.replaceChildren(h("span", { class: "soft" }, "The log has no line about this model."));
    } catch { /* the header shows that the server cannot be reached */ }
    if (!this.isClosed) this.timer = setTimeout(() => this.follow(), POLL_MS / 2);
  }

  add(found) {
    if (!this.last) this.lines.replaceChildren();
    const isAtEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 40;
    for (const [number, time, level, source, text] of found) {
      this.last = number;
      this.lines.append(h("div", { class: level }, h("time", {}, new Date(time * 1000).toLocaleTimeString([], { hour12: false })), h("span", { class: "who" }, source || "server"), h("span", { class: "what" }, text)));
    }
    while (this.lines.childElementCount > 200) this.lines.firstChild.remove();
    this.applyFilter();
    if (isAtEnd) this.lines.scrollTop = this.lines.scrollHeight;
  }

  shown() {
    this.lines.scrollTop = this.lines.scrollHeight;
  }

  applyFilter() {
    const wanted = this.filter.value.toLowerCase();
    for (const line of this.lines.children) line.hidden = !line.textContent.toLowerCase().includes(wanted);
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
  }
}
