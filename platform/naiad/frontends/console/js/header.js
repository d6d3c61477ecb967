"use strict";
// The strip of figures above every page, and the color scheme.

const SERVER_STATES = { ready: ["ready", "good"], "not ready": ["not ready", "bad"], draining: ["draining", "busy"] };

function isFailed(model) {
  return model.state === "UNAVAILABLE" && model.reason !== "unloaded";
}

function tile(name, kind = "") {
  const value = h("dd");
  get("strip").append(h("div", { class: kind }, h("dt", {}, name), value));
  return value;
}

// Whether the model serves requests without a process having to be started for it.
function isServing(model) {
  return model.state === "READY" && model.demand !== "dormant" && model.demand !== "loading";
}

const tiles = {
  models: tile("Ready"), warnings: tile("With warnings"), failed: tile("Failed"), requests: tile("Requests/s"), failures: tile("Failed/s"), tokens: tile("Tokens/s"),
  running: tile("Running"), waiting: tile("Waiting"), p95: tile("Latency p95"), memory: tile("Memory", "memory"),
};
const memory = { text: document.createTextNode(""), fill: h("i") };
tiles.memory.append(memory.text, h("span", { class: "meter", "aria-hidden": "true" }, memory.fill));

app.listeners.add(({ server, models }) => {
  const [text, kind] = SERVER_STATES[server.state] || [server.state, ""];
  setText(get("health"), text);
  setClass(get("health"), `pill ${kind}`);
  setText(get("version"), server.version);
  const failed = models.filter(isFailed).length;
  const warnings = models.filter(model => isServing(model) && stateOf(model)[1] === "busy").length;
  setText(tiles.models, models.filter(isServing).length);
  setText(tiles.warnings, warnings);
  setClass(tiles.warnings, "busy");
  tiles.warnings.parentNode.hidden = !warnings;
  setText(tiles.failed, failed);
  setClass(tiles.failed, failed ? "bad" : "");
  const { now } = server;
  setText(tiles.requests, formatNumber(now.requests || 0));
  setText(tiles.failures, formatNumber(now.failures || 0));
  setClass(tiles.failures, now.failures ? "bad" : "");
  tiles.tokens.parentNode.hidden = !models.some(model => model.uses.includes("chat"));
  setText(tiles.tokens, formatNumber(now.tokens || 0));
  const sum = name => models.reduce((all, model) => all + model[name], 0);
  setText(tiles.running, formatNumber(sum("running")));
  setText(tiles.waiting, formatNumber(sum("waiting")));
  setText(tiles.p95, now.p95 === undefined ? "idle" : formatMs(now.p95));
  if (now.memory) {
    memory.text.data = `${formatBytes(now.memory)} of ${formatBytes(server.total_memory)}`;
    memory.fill.style.width = `${Math.min(100, 100 * now.memory / server.total_memory)}%`;
  } else memory.text.data = "–";
  setText(get("facts"), `naiad ${server.version}, up ${formatAge(server.uptime_seconds)}, server id ${server.id}, ${count(models.reduce((all, model) => all + model.instances, 0), "instance")}`);
  get("api").href = address("/docs"); // Not relative: that page could send no request if its address had a password.
  get("api").hidden = !server.has_api_page;
  document.title = failed ? `naiad (${failed} failed)` : warnings ? `naiad (${warnings} with warnings)` : "naiad";
});

app.outages.add(() => {
  setText(get("health"), `unreachable since ${formatClock(app.answered)}`);
  setClass(get("health"), "pill bad");
  document.title = "naiad (unreachable)";
});

// What sticks below the header needs its height.
new ResizeObserver(([{ target }]) => document.documentElement.style.setProperty("--top", `${target.offsetHeight}px`)).observe(document.querySelector(".top"));

const THEMES = ["automatic", "light", "dark"];
const ICONS = {
  automatic: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
};
const darkness = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const chosen = localStorage.getItem("naiad.theme") || "automatic";
  document.documentElement.dataset.theme = chosen === "automatic" ? (darkness.matches ? "dark" : "light") : chosen;
  const label = `color scheme: ${chosen}`;
  get("theme").setAttribute("aria-label", label);
  get("theme").title = label;
  get("theme").replaceChildren(svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[chosen] })));
  if (app.view && app.view.recolor) app.view.recolor();
}

get("theme").addEventListener("click", () => {
  const chosen = localStorage.getItem("naiad.theme") || "automatic";
  localStorage.setItem("naiad.theme", THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
  applyTheme();
});
darkness.addEventListener("change", applyTheme);
applyTheme();
