"use strict";
// Shows the OpenAPI document of this server, and sends requests to it. Text is always text: nothing here parses markup,
// so that names of models cannot become elements.

const MOST_VALUES = 65536; // elements of an input that are written into a request
const BINARY_SHOWN = 512; // bytes of a binary response that are shown
const METHODS = ["get", "post", "delete"];
const get = id => document.getElementById(id);
// Where the server is, also behind a proxy that adds a folder to its paths.
const folder = location.pathname.replace(/\/docs\/?$/, "");
const root = folder.replace(/\/v2$/, "");
let api = null;

function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false && child !== ""));
  return node;
}

// Paragraphs with code between backquotes.
function prose(text) {
  return String(text || "").trim().split("`").map((part, i) => i % 2 ? h("code", {}, part) : part);
}

function headers() {
  const made = {};
  for (const line of get("headers").value.split("\n")) {
    const at = line.indexOf(":");
    if (at > 0) made[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return made;
}

// -- schemas ----------------------------------------------------------------------------------------------------------

function resolved(value) {
  let found = value;
  for (let i = 0; found && found.$ref && i < 20; i++) found = found.$ref.slice(2).split("/").reduce((node, key) => node[key], api);
  return found || {};
}

// A copy of a schema in which references are replaced by what they name, a few levels deep.
function expanded(value, depth = 0) {
  if (Array.isArray(value)) return value.map(one => expanded(one, depth));
  if (value === null || typeof value !== "object") return value;
  if (value.$ref && depth > 6) return { $ref: value.$ref };
  const found = resolved(value);
  return Object.fromEntries(Object.entries(found).map(([key, one]) => [key, expanded(one, depth + 1)]));
}

// A value that a schema allows, to begin with.
function sample(given) {
  const schema = resolved(given);
  if (schema.example !== undefined) return schema.example;
  if (schema.enum) return schema.enum[0];
  const choice = schema.oneOf || schema.anyOf;
  if (choice) return sample(choice[0]);
  if (schema.type === "object") return sampleObject(schema);
  if (schema.type === "array") return schema.minItems === 0 || !schema.items ? [] : Array(schema.minItems || 1).fill(sample(schema.items));
  if (schema.type === "integer") return Math.max(schema.minimum || 0, Math.min(1, schema.maximum ?? 1));
  return { number: 0.5, boolean: true, string: "text" }[schema.type] ?? null;
}

function sampleObject(schema) {
  const properties = schema.properties || {};
  const made = {};
  for (const name of schema.required || []) made[name] = name === "inputs" && properties.inputs ? sampleInputs(properties.inputs) : sample(properties[name] || {});
  return made;
}

// The inputs of an inference request: one of each tensor that is required.
function sampleInputs(inputs) {
  const items = resolved(inputs.items);
  return (items.oneOf || [items]).filter(tensor => !/, optional$/.test(tensor.title || "")).map(given => {
    const tensor = sampleObject(resolved(given));
    const data = resolved(given).properties.data;
    if (data) tensor.data = sampleData(data, tensor.shape);
    return tensor;
  });
}

function sampleData(data, shape) {
  const count = (Array.isArray(shape) ? shape : [1]).reduce((product, dim) => product * dim, 1);
  return count > MOST_VALUES ? [] : Array(count).fill(sample(data.items));
}

function jsonOf(content) {
  return content && content["application/json"];
}

// JSON with lists of plain values on one line each.
function pretty(value, indent = "") {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    if (value.every(one => one === null || typeof one !== "object")) return `[${value.map(one => JSON.stringify(one)).join(", ")}]`;
    return `[\n${value.map(one => inner + pretty(one, inner)).join(",\n")}\n${indent}]`;
  }
  const entries = Object.entries(value);
  if (!entries.length) return "{}";
  return `{\n${entries.map(([key, one]) => `${inner}${JSON.stringify(key)}: ${pretty(one, inner)}`).join(",\n")}\n${indent}}`;
}

// -- operations -------------------------------------------------------------------------------------------------------

function operations() {
  const found = [];
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS) {
      if (item[method]) found.push({ path, method, operation: item[method], parameters: [...(item.parameters || []), ...(item[method].parameters || [])].map(resolved) });
    }
  }
  return found;
}

function show() {
  const groups = new Map((api.tags || []).map(tag => [tag.name, []]));
  for (const each of operations()) {
    const tag = (each.operation.tags || ["other"])[0];
    if (!groups.has(tag)) groups.set(tag, []);
    groups.get(tag).push(each);
  }
  const sections = [...groups].filter(([, members]) => members.length).map(([tag, members]) => h("section", { "aria-label": tag }, h("h2", {}, tag), tag === "loaded models" ? byModel(members) : members.map(operationNode)));
  get("main").replaceChildren(...sections, h("p", { id: "none", class: "soft", hidden: true }, "No operation matches the filter."));
  get("main").setAttribute("aria-busy", "false");
  filter();
}

// The operations of each loaded model below its name.
function byModel(members) {
  const models = new Map();
  for (const each of members) {
    const name = decoded(each.path.split("/")[3]);
    models.set(name, [...(models.get(name) || []), each]);
  }
  return [...models].map(([name, own]) => h("div", { class: "model", role: "group", "aria-label": name }, h("h3", { class: "mono" }, name), own.map(operationNode)));
}

function operationNode(each) {
  const words = `${each.method} ${decoded(each.path)} ${each.operation.summary || ""} ${(each.operation.tags || []).join(" ")}`.toLowerCase();
  const inside = h("div", { class: "inside" });
  const node = h("details", { class: "operation", id: `${each.method}-${each.path}`, "data-words": words },
    h("summary", {}, h("span", { class: `method ${each.method}` }, each.method.toUpperCase()), h("span", { class: "path mono" }, decoded(each.path)), h("span", { class: "soft" }, each.operation.summary)),
    inside);
  // Filled when it is opened: a server may have thousands of models.
  node.addEventListener("toggle", () => { if (node.open && !inside.childElementCount) fill(inside, each); });
  return node;
}

function decoded(path) {
  try { return decodeURIComponent(path); } catch { return path; }
}

function fill(inside, each) {
  const { operation } = each;
  const fields = each.parameters.map((parameter, i) => fieldNode(parameter, `${each.method}-${each.path}-${i}`));
  const content = jsonOf(resolved(operation.requestBody).content);
  const bodyId = `${each.method}-${each.path}-body`;
  const body = content && h("textarea", { id: bodyId, rows: 10, spellcheck: "false" });
  if (body) {
    const value = content.example ?? sample(content.schema);
    body.value = pretty(value);
    body.rows = Math.min(22, body.value.split("\n").length + 1);
  }
  const took = h("span", { class: "took", role: "status" });
  const result = h("div", { class: "result" });
  const command = h("pre", { class: "command", tabindex: "0", "aria-label": "the request for curl" });
  const send = h("button", { type: "button", class: "main" }, "Send");
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const request = () => requestOf(each, fields, body);
  const refresh = () => { command.textContent = curl(request()); };
  send.addEventListener("click", () => sendRequest(request(), { send, stop, took, result }));
  inside.append(
    ...(operation.description ? [h("p", { class: "soft" }, prose(operation.description))] : []),
    ...(fields.length ? [h("h3", {}, "Parameters"), ...fields.map(field => field.node)] : []),
    ...(body ? [h("h3", {}, h("label", { for: bodyId }, "Body, JSON")), body] : []),
    h("div", { class: "row" }, send, stop, took), result,
    h("details", { ontoggle: refresh }, h("summary", {}, "The same request for curl"), command),
    schemaNode("Schema of the request", content && content.schema),
    ...Object.entries(operation.responses || {}).map(([status, response]) => responseNode(status, resolved(response))));
  inside.addEventListener("input", refresh);
  refresh();
}

function fieldNode(parameter, id) {
  const schema = resolved(parameter.schema);
  const value = parameter.in === "path" ? parameter.example ?? schema.example ?? "" : "";
  const input = h("input", { id, autocomplete: "off", class: "mono", required: parameter.required });
  input.value = value;
  const kind = [parameter.in === "path" ? "in the path" : parameter.in, schema.type, schema.enum && schema.enum.join(", ")].filter(Boolean).join("; ");
  const node = h("div", { class: "field" }, h("label", { for: id }, h("span", { class: "mono" }, parameter.name), " ", h("span", { class: "soft" }, kind)), input, h("span", { class: "soft" }, parameter.description));
  return { parameter, input, node };
}

function schemaNode(title, schema) {
  if (!schema || !Object.keys(schema).length) return "";
  const text = h("pre", { tabindex: "0", "aria-label": title });
  return h("details", { ontoggle: () => { text.textContent = text.textContent || pretty(expanded(schema)); } }, h("summary", {}, title), text);
}

function responseNode(status, response) {
  const content = Object.entries(response.content || {});
  const title = `Response ${status}: ${response.description || ""}${content.length ? ` (${content.map(([type]) => type).join(", ")})` : ""}`;
  const schema = content.map(([, media]) => media.schema).find(Boolean);
  return schemaNode(title, schema) || h("p", { class: "soft" }, title);
}

// -- requests ---------------------------------------------------------------------------------------------------------

function requestOf(each, fields, body) {
  let { path } = each;
  const sent = headers();
  const query = new URLSearchParams();
  for (const { parameter, input } of fields) {
    if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    else if (input.value !== "" && parameter.in === "header") sent[parameter.name] = input.value;
    else if (input.value !== "" && parameter.in === "query") query.set(parameter.name, input.value);
  }
  const text = body ? body.value : "";
  if (text.trim()) sent["Content-Type"] = "application/json";
  const search = query.toString();
  return { method: each.method.toUpperCase(), url: root + path + (search && `?${search}`), headers: sent, body: text.trim() ? text : undefined };
}

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

function curl(request) {
  const parts = ["curl"];
  if (request.method !== "GET" && !(request.method === "POST" && request.body !== undefined)) parts.push(`-X ${request.method}`);
  parts.push(quoted(location.origin + request.url));
  for (const [name, value] of Object.entries(request.headers)) parts.push(`\\\n  -H ${quoted(`${name}: ${value}`)}`);
  if (request.body !== undefined) parts.push(`\\\n  -d ${quoted(request.body.replace(/\n\s*/g, " "))}`);
  return parts.join(" ");
}

async function sendRequest(request, nodes) {
  const { send, stop, took, result } = nodes;
  const aborter = new AbortController();
  const onStop = () => aborter.abort();
  send.disabled = true;
  stop.hidden = false;
  stop.addEventListener("click", onStop);
  took.className = "took soft";
  took.textContent = "sent";
  result.replaceChildren();
  const started = performance.now();
  try {
    const response = await fetch(absolute(request.url), { method: request.method, headers: request.headers, body: request.body, signal: aborter.signal });
    const finish = () => {
      took.className = `took ${response.ok ? "good" : "bad"}`;
      took.textContent = `${response.status} ${response.statusText} in ${(performance.now() - started).toFixed(1)} ms`;
    };
    const names = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    const text = h("pre", { class: "body", tabindex: "0", "aria-label": "body of the response" });
    result.append(text, h("details", {}, h("summary", {}, "Headers of the response"), h("pre", { tabindex: "0" }, names)));
    await showBody(response, text);
    finish();
  } catch (error) {
    took.className = "took bad";
    took.textContent = aborter.signal.aborted ? "stopped" : `no response: ${error.message}`;
  } finally {
    send.disabled = false;
    stop.hidden = true;
    stop.removeEventListener("click", onStop);
  }
}

// JSON in several lines; as it is where reading it would change it: integers of more than 53 bits.
function arranged(text) {
  try { return /[0-9]{16}/.test(text) ? text : pretty(JSON.parse(text)); } catch { return text; }
}

async function showBody(response, node) {
  const type = response.headers.get("content-type") || "";
  if (type.startsWith("text/event-stream")) {
    const decoder = new TextDecoder();
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) node.append(decoder.decode(part.value, { stream: true }));
  } else if (type.includes("json") || type.startsWith("text/")) {
    const text = await response.text();
    node.textContent = arranged(text);
  } else {
    const bytes = new Uint8Array(await response.arrayBuffer());
    const head = [...bytes.slice(0, BINARY_SHOWN)].map(byte => byte.toString(16).padStart(2, "0")).join(" ");
    node.textContent = `${bytes.length} bytes${bytes.length > BINARY_SHOWN ? `, the first ${BINARY_SHOWN}:` : ""}\n${head}`.trim();
  }
  if (!node.textContent) node.textContent = "no body";
}

// -- the page ---------------------------------------------------------------------------------------------------------

function filter() {
  const words = get("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const section of document.querySelectorAll("main section")) {
    let here = 0;
    for (const node of section.querySelectorAll(".operation")) {
      node.hidden = !words.every(word => node.dataset.words.includes(word));
      here += !node.hidden;
    }
    for (const model of section.querySelectorAll(".model")) model.hidden = !model.querySelector(".operation:not([hidden])");
    section.hidden = !here;
    shown += here;
  }
  if (get("none")) get("none").hidden = shown > 0;
}

function openNamed() {
  const node = location.hash.length > 1 && document.getElementById(decoded(location.hash.slice(1)));
  if (node && node.classList.contains("operation")) { node.open = true; node.scrollIntoView(); }
}

// Browsers request no relative address from a page whose own names a user and a password.
function absolute(path) { return location.origin + path; }

async function load() {
  const trouble = get("trouble");
  try {
    const response = await fetch(absolute(`${folder}/openapi.json`), { headers: headers() });
    const document_ = await response.json();
    if (!response.ok) {
      if (response.status === 403 || response.status === 401) get("keys").open = true;
      throw new Error(document_.error || `status ${response.status}`);
    }
    api = document_;
    trouble.hidden = true;
  } catch (error) {
    trouble.textContent = `cannot read the API: ${error.message}`;
    trouble.hidden = false;
    get("main").setAttribute("aria-busy", "false");
    return;
  }
  get("server").textContent = `of ${api.info.title} ${api.info.version}`;
  get("about").replaceChildren(...prose(api.info.description));
  get("console").hidden = !api.paths["/ui"];
  get("console").href = absolute(`${root}/ui`);
  show();
  openNamed();
}

get("document").href = `${folder}/openapi.json`;
get("filter").addEventListener("input", filter);
get("again").addEventListener("click", load);
addEventListener("hashchange", openNamed);
load();
