"use strict";
// Documents of the server, and the state that all parts of the page show.

const POLL_MS = 2000;
const app = { state: null, view: null, listeners: new Set(), outages: new Set(), answered: Date.now(), listAddress: "#/" };

// With the origin: a page that was opened with a password in its address must not repeat it.
function address(path) {
  return location.origin + path;
}

function pathOf(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

async function fetchJson(path, options) {
  const answer = await fetch(address(path), options);
  const text = await answer.text();
  let value;
  try { value = JSON.parse(text); } catch { throw new Error(`the server responded with status ${answer.status}`); }
  if (!answer.ok) throw new Error(value.error || `the server responded with status ${answer.status}`);
  return value;
}

const getDocument = (...parts) => fetchJson(`/ui/data/${pathOf(...parts)}`);

const control = (action, model) =>
  fetchJson(`/ui/control/${pathOf(action, model)}`, { method: "POST", headers: { "naiad-console": "1" } });

function modelPath(model, endpoint) {
  return `/v2/models/${pathOf(model.name)}/versions/${pathOf(model.version)}/${endpoint}`;
}

let polling = 0;

async function poll() {
  clearTimeout(polling);
  try {
    app.state = await getDocument("state");
    app.answered = Date.now();
    setText(get("trouble"), "");
    get("trouble").hidden = true;
    for (const listener of app.listeners) listener(app.state);
  } catch (error) {
    setText(get("trouble"), `cannot reach the server since ${formatClock(app.answered)}: what is shown is from then${error instanceof TypeError ? "" : ` (${error.message})`}`);
    get("trouble").hidden = false;
    for (const listener of app.outages) listener();
  }
  polling = setTimeout(poll, document.hidden ? 10 * POLL_MS : POLL_MS);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });

// -- the last hour ------------------------------------------------------------------------------------------------------

const KEPT_SECONDS = 3600;

class Samples {
  constructor(key) {
    this.key = key;
    this.time = [];
    this.figures = {};
  }

  async update() {
    const last = this.time.length ? this.time[this.time.length - 1] : 0;
    const found = await getDocument("history", this.key, String(last));
    const known = this.time.length;
    this.time.push(...found.time);
    for (const name of new Set([...Object.keys(this.figures), ...Object.keys(found.figures)])) {
      const values = this.figures[name] ||= new Array(known).fill(null);
      values.push(...(found.figures[name] || new Array(found.time.length).fill(null)));
    }
    const old = this.time.findIndex(time => time > this.time[this.time.length - 1] - KEPT_SECONDS);
    if (old > 0) for (const values of [this.time, ...Object.values(this.figures)]) values.splice(0, old);
    return found.time.length > 0;
  }
}
