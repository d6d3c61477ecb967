"use strict";
// A form with one field for each input of a model, and the response as a table and as JSON.

const FLOATS = ["FP16", "BF16", "FP32", "FP64"];
const BINARY_ONLY = ["FP16", "BF16"];  // JSON of KServe has no numbers of these datatypes
const MAX_FILL = 65536;
const SHOWN_VALUES = 200;
const TEXT_OUTPUT = "text_output";  // of language models, by the convention of Triton's vLLM backend: pieces of one text

class InputField {
  constructor(input, onChange) {
    this.input = input;
    this.onChange = onChange;
    this.value = null;  // of files; typed text otherwise
    this.fixed = input.shape.every(size => size === 1);
    const id = `input-${input.name}`;
    const shape = input.shape.map(size => size > 0 ? size : 1);
    this.shape = h("input", { class: "mono", size: "12", value: shape.join(", "), "aria-label": `shape of ${input.name}`, spellcheck: "false" });
    this.isWhole = input.shape.filter(size => size > 0).reduce((all, size) => all * size, 1) * 1 === 1;
    const start = shape.reduce((all, size) => all * size, 1);
    if (input.datatype === "BYTES" && start === 1) this.data = h("textarea", { id, rows: "2", "aria-label": input.name, spellcheck: "false" });
    else if (input.datatype === "BOOL" && start === 1) this.data = h("select", { id, "aria-label": input.name }, h("option", {}, "false"), h("option", {}, "true"));
    else this.data = h("textarea", { id, class: "mono", rows: "2", "aria-label": input.name, spellcheck: "false" });
    if (input.datatype !== "BYTES" && input.datatype !== "BOOL" || start > 1) this.fill("zeros");
    this.tick = input.required ? null : h("input", { type: "checkbox", "aria-label": `send ${input.name}`, onchange: () => this.show() });
    const fills = h("span", { class: "fills" }, ["zeros", "ones", "count", "random"].map(kind => h("button", { type: "button", onclick: () => this.fill(kind) }, kind)));
    const isList = this.data.tagName === "TEXTAREA" && (input.datatype !== "BYTES" || start > 1);
    this.typed = h("div", {},
      h("div", { class: "row" }, this.data),
      input.shape.some(size => size < 0) || isList ? h("div", { class: "row" }, h("label", {}, "shape", this.shape), isList && input.datatype !== "BYTES" ? fills : null) : null);
    this.body = h("div", {}, this.typed, canTakeFiles(input) ? this.fileRow() : null);
    this.node = h("fieldset", {}, h("legend", {}, this.tick ? h("label", {}, this.tick, " ", input.name) : h("span", {}, input.name), h("span", { class: "soft" }, `${input.datatype} [${input.shape.join(", ")}]${input.required ? "" : ", optional"}`)), this.body);
    this.show();
  }

  // A button, and the same by dropping files on the field.
  fileRow() {
    const isPicture = this.input.datatype === "UINT8" && pictureLayout(this.input.shape);
    this.picker = h("input", { type: "file", class: "hidden", tabindex: "-1", "aria-hidden": "true", multiple: this.input.datatype === "BYTES", onchange: () => this.take([...this.picker.files]) });
    this.chosen = h("span", { class: "note", role: "status" });
    this.drop = h("button", { type: "button", hidden: true, onclick: () => this.take([]) }, "Remove");
    this.preview = h("span");
    const choose = h("button", { type: "button", "aria-label": `file for ${this.input.name}`, onclick: () => this.picker.click() }, isPicture ? "Picture or file …" : "File …");
    return h("div", { class: "row files", ondragover: event => event.preventDefault(), ondrop: event => { event.preventDefault(); this.take([...event.dataTransfer.files]); } }, this.picker, choose, this.preview, this.chosen, this.drop);
  }

  async take(files) {
    this.value = null;
    this.picker.value = "";
    setClass(this.chosen, "note");
    let told = "";
    if (files.length) {
      try {
        this.value = await valueOfFiles(this.input, files);
        told = this.value.told;
      } catch (error) {
        told = error.message;
        setClass(this.chosen, "error");
      }
    }
    setText(this.chosen, told);
    this.preview.replaceChildren(...this.value && this.value.canvas ? [this.value.canvas] : []);
    this.typed.hidden = Boolean(this.value);
    this.drop.hidden = !this.value;
    this.onChange();
  }

  // The input with its shape, and either its bytes or its elements.
  content() {
    if (!this.value) return { ...this.input, shape: this.sizes(), elements: this.elements() };
    const input = this.input, value = this.value;
    return { ...input, ...value, get elements() { return elementsOfFiles(input, value); } };
  }

  get isSent() {
    return !this.tick || this.tick.checked;
  }

  show() {
    this.body.hidden = !this.isSent;
    this.node.classList.toggle("off", !this.isSent);
  }

  sizes() {
    const sizes = this.shape.value.split(/[\s,x×]+/).filter(Boolean).map(Number);
    if (sizes.length !== this.input.shape.length || sizes.some(size => !Number.isInteger(size) || size < 0)) {
      throw new Error(`${this.input.name}: the shape needs ${count(this.input.shape.length, "whole number")}, like ${this.input.shape.map(size => size > 0 ? size : 1).join(", ")}`);
    }
    return sizes;
  }

  fill(kind) {
    const total = Math.min(this.sizes().reduce((all, size) => all * size, 1), MAX_FILL);
    const isFloat = FLOATS.includes(this.input.datatype);
    const values = Array.from({ length: total }, (_, i) => kind === "zeros" ? 0 : kind === "ones" ? 1 : kind === "count" ? i : isFloat ? Number(Math.random().toFixed(4)) : Math.floor(Math.random() * 10));
    this.data.value = this.input.datatype === "BOOL" ? values.map(Boolean).join(", ") : this.input.datatype === "BYTES" ? JSON.stringify(values.map(() => "")) : values.join(", ");
  }

  // The elements as they are written in JSON: texts, so that 64-bit integers keep all their digits.
  elements() {
    const { datatype, name } = this.input;
    const text = this.data.value;
    const total = this.sizes().reduce((all, size) => all * size, 1);
    let elements;
    if (datatype === "BYTES") {
      let list = null;
      try { list = JSON.parse(text); } catch { /* plain text */ }
      elements = (Array.isArray(list) && (total !== 1 || list.length === 1) && list.flat(Infinity).every(each => typeof each === "string") ? list.flat(Infinity) : [text]).map(each => JSON.stringify(each));
    } else {
      elements = text.replace(/[[\]]/g, " ").split(/[\s,;]+/).filter(Boolean).map(each => each.toLowerCase());
      const form = datatype === "BOOL" ? /^(true|false|0|1)$/ : FLOATS.includes(datatype) ? /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/ : /^[-+]?\d+$/;
      const wrong = elements.find(each => !form.test(each));
      if (wrong !== undefined) throw new Error(`${name}: '${wrong}' is not a value of ${datatype}`);
      elements = elements.map(each => datatype === "BOOL" ? String(each === "true" || each === "1") : FLOATS.includes(datatype) ? String(Number(each)) : String(BigInt(each.replace("+", ""))));
    }
    if (elements.length !== total) throw new Error(`${name}: the shape has ${count(total, "element")}, and there are ${elements.length} values`);
    return elements;
  }
}

class RequestForm {
  constructor(model) {
    this.model = model;
    this.fields = model.inputs.map(input => new InputField(input, () => this.showSamples()));
    this.button = h("button", { class: "main" }, "Send");
    this.stop = h("button", { type: "button", hidden: true, onclick: () => this.abort.abort() }, "Stop");
    this.took = h("span", { class: "soft", role: "status", id: "took" });
    this.table = h("div");
    this.json = h("pre", { tabindex: "0", hidden: true, id: "response-json" });
    this.views = ["Table", "JSON"].map(name => h("button", { type: "button", "aria-pressed": String(name === "Table"), onclick: () => this.choose(name) }, name));
    this.response = h("section", { class: "card", id: "response" }, h("div", { class: "tools" }, h("h2", {}, "Response"), this.took, h("div", { class: "segments", role: "group", "aria-label": "form of the response" }, this.views)), this.table, this.json);
    this.table.append(h("p", { class: "note" }, "Send the request to see its outputs."));
    const required = this.fields.filter(field => !field.tick), optional = this.fields.filter(field => field.tick);
    this.form = h("form", { class: "card", onsubmit: event => { event.preventDefault(); this.send(); } },
      h("h2", {}, "Request"), required.map(field => field.node),
      optional.length ? [h("h3", {}, "Optional inputs"), h("p", { class: "note" }, "Tick the ones to send."), optional.map(field => field.node)] : null,
      this.fields.length ? null : h("p", { class: "note" }, "The model has no inputs."),
      h("div", { class: "tools" }, this.button, this.stop));
    this.samples = h("details", { class: "card", ontoggle: () => this.showSamples() }, h("summary", {}, "The same request as a command"));
    this.form.addEventListener("input", () => this.showSamples());
    this.node = h("div", {}, h("div", { class: "two" }, this.form, this.response), this.samples);
  }

  choose(name) {
    this.views.forEach(view => view.setAttribute("aria-pressed", String(view.textContent === name)));
    this.table.hidden = name !== "Table";
    this.json.hidden = name !== "JSON";
  }

  inputs() {
    return this.fields.filter(field => field.isSent).map(field => field.content());
  }

  async send() {
    this.abort = new AbortController();
    this.button.disabled = true;
    this.stop.hidden = false;
    this.took.textContent = "waiting …";
    const begun = performance.now();
    const after = () => formatMs(performance.now() - begun);
    try {
      const inputs = this.inputs();
      if (this.model.is_decoupled) await this.stream(inputs, after);
      else await this.infer(inputs, after);
    } catch (error) {
      this.took.textContent = error.name === "AbortError" ? `stopped after ${after()}` : `failed after ${after()}`;
      if (error.name !== "AbortError") {
        this.table.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
        this.json.textContent = error.body || "";
      }
    }
    this.button.disabled = false;
    this.stop.hidden = true;
  }

  async infer(inputs, after) {
    const outputs = this.model.outputs.filter(output => BINARY_ONLY.includes(output.datatype));
    const packed = inputs.filter(isBinary).map(input => ({ input, bytes: input.bytes || packHalves(input) }));
    const requested = outputs.length ? `,"outputs":[${this.model.outputs.map(output => JSON.stringify({ name: output.name, parameters: { binary_data: outputs.includes(output) } })).join()}]` : "";
    const sequence = sequenceOf(this.model);
    const parameters = sequence ? `"parameters":${JSON.stringify(sequence)},` : "";
    const text = `{${parameters}"inputs":[${inputs.map(input => inputJson(input, packed.find(each => each.input === input))).join()}]${requested}}`;
    const headers = {};
    let body = text;
    if (packed.length) {
      const json = new TextEncoder().encode(text);
      headers["Inference-Header-Content-Length"] = String(json.length);
      body = new Blob([json, ...packed.map(each => each.bytes)]);
    }
    const answer = await fetch(address(modelPath(this.model, "infer")), { method: "POST", body, headers, signal: this.abort.signal });
    const response = await readResponse(answer);
    this.took.textContent = `${answer.status} in ${after()}`;
    this.json.textContent = prettyJson(response.text);
    if (!answer.ok) throw Object.assign(new Error(response.value.error || `status ${answer.status}`), { body: this.json.textContent });
    this.table.replaceChildren(outputTable(response.value.outputs));
  }

  async stream(inputs, after) {
    this.table.replaceChildren();
    this.json.textContent = "";
    const events = [];
    let painting = 0;
    const paint = () => {
      painting = 0;
      this.took.textContent = `${count(events.length, "response")} in ${after()}`;
      this.json.textContent = events.map(event => JSON.stringify(event)).join("\n");
      this.table.replaceChildren(streamTable(this.model.outputs, events));
    };
    try {
      await streamGenerate(this.model, generateBody(inputs), this.abort.signal, event => {
        events.push(event);
        painting ||= setTimeout(paint, 50);
      });
    } finally {
      clearTimeout(painting);
      paint();
    }
  }

  showSamples() {
    if (!this.samples.open) return;
    let inputs;
    const summary = this.samples.firstChild;
    try { inputs = this.inputs(); } catch (error) {
      this.samples.replaceChildren(summary, h("p", { class: "note" }, error.message));
      return;
    }
    this.samples.replaceChildren(summary, ...commandsFor(this.model, inputs).flatMap(([name, text]) => [h("h3", {}, name), copyable(text)]));
  }
}

// Whether the value travels as bytes after the JSON of the request.
function isBinary(input) {
  return Boolean(input.bytes) || BINARY_ONLY.includes(input.datatype);
}

function inputJson(input, packed) {
  const content = packed ? `"parameters":{"binary_data_size":${packed.bytes.length}}` : `"data":[${input.elements.join()}]`;
  return `{"name":${JSON.stringify(input.name)},"datatype":"${input.datatype}","shape":[${input.shape}],${content}}`;
}

// The parameters of a request that is a sequence of its own; null for a model without sequences.
function sequenceOf(model) {
  const batching = (model.config || {}).sequence_batching;
  if (!batching) return null;
  const controls = (batching.control_input || []).flatMap(tensor => tensor.control || []);
  const isText = controls.some(control => control.kind === "CONTROL_SEQUENCE_CORRID" && control.data_type === "TYPE_STRING");
  return { sequence_id: isText ? "1" : 1, sequence_start: true, sequence_end: true };
}

function generateBody(inputs) {
  return `{${inputs.map(input => `${JSON.stringify(input.name)}:${input.elements.length === 1 ? input.elements[0] : `[${input.elements.join()}]`}`).join()}}`;
}

async function readResponse(answer) {
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const length = Number(answer.headers.get("inference-header-content-length")) || bytes.length;
  const text = new TextDecoder().decode(bytes.subarray(0, length));
  let value;
  try { value = JSON.parse(text); } catch { throw new Error(text || `status ${answer.status}`); }
  let at = length;
  for (const output of value.outputs || []) {
    const size = (output.parameters || {}).binary_data_size;
    if (size === undefined) continue;
    output.data = unpackHalves(bytes.slice(at, at + size), output.datatype);
    at += size;
  }
  return { text: length < bytes.length ? JSON.stringify(value) : text, value };
}

// Calls *onEvent* with each response of a model that may send several.
async function streamGenerate(model, body, signal, onEvent) {
  const answer = await fetch(address(modelPath(model, "generate_stream")), { method: "POST", body, signal });
  if (!answer.ok) {
    const refusal = (await answer.text()).replace(/^data: /, "");
    let message = `the server responded with status ${answer.status}`;
    try { message = JSON.parse(refusal).error || message; } catch { /* not a JSON error */ }
    throw new Error(message);
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const part = JSON.parse(event.replace(/^data: /, ""));
      if (part.error) throw new Error(part.error);
      onEvent(part);
    }
  }
}

function prettyJson(text) {
  // Lists of numbers stay on one line; digits stay as the server wrote them.
  let depth = 0, out = "", inText = false, lists = [];
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (c === '"' && text[i - 1] !== "\\") inText = !inText;
    if (inText || c === '"') { out += c; continue; }
    const isFlat = lists[lists.length - 1] === true;
    if (c === "{" || c === "[") {
      const next = text.slice(i + 1).trimStart()[0];
      lists.push(c === "[" && next !== "{" && next !== "[");
      depth += 1;
      out += lists[lists.length - 1] ? c : `${c}\n${"  ".repeat(depth)}`;
    } else if (c === "}" || c === "]") {
      depth -= 1;
      out += lists.pop() ? c : `\n${"  ".repeat(depth)}${c}`;
    } else if (c === ",") out += isFlat ? ", " : `,\n${"  ".repeat(depth)}`;
    else if (c === ":") out += ": ";
    else if (!/\s/.test(c)) out += c;
  }
  return out;
}

function outputTable(outputs) {
  if (!outputs || !outputs.length) return h("p", { class: "note" }, "The response has no outputs.");
  return table("outputs", [{ text: "Output", full: true }, "Datatype", "Shape", { text: "Values", full: true }], outputs.map(output => [
    h("b", {}, output.name), output.datatype, output.shape ? `[${output.shape.join(", ")}]` : `[${output.data.length}]`, valuesNode(output)]), "outputs");
}

// All responses of a stream in one table: a language model sends a response for each token.
function streamTable(outputs, events) {
  if (!events.length) return h("p", { class: "note" }, "The model has sent no response.");
  const rows = outputs.map(output => [output, events.filter(event => output.name in event).map(event => [event[output.name]].flat())]).filter(([, parts]) => parts.length).map(([output, parts]) => {
    const isText = output.name === TEXT_OUTPUT && output.datatype === "BYTES";
    return [h("b", {}, output.name), output.datatype, String(parts.length), valuesNode({ ...output, shape: null, data: isText ? [parts.flat().join("")] : parts.flat() })];
  });
  return h("div", {}, table("outputs of all responses", [{ text: "Output", full: true }, "Datatype", { text: "Responses", number: true }, { text: "Values", full: true }], rows, "outputs"),
    events.length > 1 && rows.length && outputs.some(output => output.name === TEXT_OUTPUT) ? h("p", { class: "note" }, `${TEXT_OUTPUT} is the text of all responses; JSON has each response in a line of its own.`) : null);
}

function valuesNode({ data, shape, datatype }) {
  const values = data || [];
  if (datatype === "BYTES" && values.length === 1) return h("pre", {}, String(values[0]));
  const isMatrix = shape && shape.length === 2 && shape[0] > 1 && shape[0] <= 20 && shape[1] <= 12;
  const show = value => typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value);
  if (isMatrix) {
    return h("table", {}, h("tbody", {}, Array.from({ length: shape[0] }, (_, row) => h("tr", {}, values.slice(row * shape[1], (row + 1) * shape[1]).map(value => h("td", { class: "number" }, show(value)))))));
  }
  const more = values.length > SHOWN_VALUES ? ` … and ${values.length - SHOWN_VALUES} more` : "";
  return h("span", { class: "mono" }, values.slice(0, SHOWN_VALUES).map(show).join(", ") + more);
}

// -- 16-bit floats ------------------------------------------------------------------------------------------------------

function packHalves(input) {
  const halves = new Uint16Array(input.elements.length);
  input.elements.forEach((text, i) => { halves[i] = input.datatype === "BF16" ? roundedBits(Number(text)) : halfBits(Number(text)); });
  return new Uint8Array(halves.buffer);
}

function floatBits(value) {
  return new Uint32Array(new Float32Array([value]).buffer)[0];
}

function roundedBits(value) {
  const bits = floatBits(value);
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function halfBits(value) {
  const bits = floatBits(value), sign = (bits >>> 16) & 0x8000, size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | roundEven(size * 2 ** 24);
  const exponent = Math.floor(Math.log2(size)), whole = roundEven(size / 2 ** (exponent - 10));
  return sign | (((exponent + 14) << 10) + whole);
}

function roundEven(value) {
  const low = Math.floor(value), part = value - low;
  return part > 0.5 || (part === 0.5 && low % 2) ? low + 1 : low;
}

function unpackHalves(bytes, datatype) {
  const halves = new Uint16Array(bytes.buffer, 0, bytes.length >> 1);
  return Array.from(halves, bits => {
    if (datatype === "BF16") return new Float32Array(new Uint32Array([bits << 16]).buffer)[0];
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, whole = bits & 1023;
    if (exponent === 31) return whole ? NaN : sign * Infinity;
    return sign * (exponent ? (1024 + whole) * 2 ** (exponent - 25) : whole * 2 ** -24);
  });
}

// -- the same request elsewhere -----------------------------------------------------------------------------------------

const NUMPY_TYPES = { BOOL: "bool_", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object_" };
const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

function commandsFor(model, inputs) {
  const hasFiles = inputs.some(input => input.bytes);
  const endpoint = model.is_decoupled ? "generate_stream" : "infer";
  const python = model.is_decoupled ? grpcSample(model, inputs) : httpSample(model, inputs);
  if (hasFiles) return [["tritonclient", python]];  // files travel as bytes, not as JSON or as arguments
  const needsBinary = inputs.some(isBinary);
  const sequence = sequenceOf(model);
  const body = needsBinary ? "" : model.is_decoupled ? generateBody(inputs) : `{${sequence ? `"parameters": ${JSON.stringify(sequence)}, ` : ""}"inputs": [${inputs.map(input => inputJson(input)).join(", ")}]}`;
  const curl = needsBinary ? "# JSON has no numbers of FP16 and BF16: use tritonclient or naiad run"
    : `curl ${model.is_decoupled ? "-N " : ""}${quoted(address(modelPath(model, endpoint)))} -d ${quoted(body)}`;
  const values = inputs.map(input => ` \\\n  --input ${quoted(`${input.name}=${input.datatype === "BYTES" && input.elements.length === 1 ? JSON.parse(input.elements[0]) : `[${input.elements.join(", ")}]`}`)}`);
  const run = `naiad run ${quoted(model.directory || model.name)} --version=${model.version}${values.join("")}`;
  return [["curl", curl], ["tritonclient", python], ["naiad run", run]];
}

function pythonSequence(model) {
  const sequence = sequenceOf(model);
  return sequence ? `, sequence_id=${JSON.stringify(sequence.sequence_id)}, sequence_start=True, sequence_end=True` : "";
}

function pythonInputs(inputs) {
  return inputs.map((input, i) => {
    if (input.python) return `inputs.append(client.InferInput(${JSON.stringify(input.name)}, [${input.shape.join(", ")}], "${input.datatype}"))\ninputs[${i}].set_data_from_numpy(${input.python}.reshape(${input.shape.join(", ")}))`;
    const values = input.elements.map(text => input.datatype === "BOOL" ? (text === "true" ? "True" : "False") : text);
    const type = input.datatype === "BF16" ? "ml_dtypes.bfloat16" : `np.${NUMPY_TYPES[input.datatype]}`;
    const array = `np.array([${values.join(", ")}], ${type})`;
    return `inputs.append(client.InferInput(${JSON.stringify(input.name)}, [${input.shape.join(", ")}], "${input.datatype}"))\ninputs[${i}].set_data_from_numpy(${array}.reshape(${input.shape.join(", ")}))`;
  }).join("\n");
}

function moreImports(inputs) {
  const types = inputs.some(input => input.datatype === "BF16") ? "import ml_dtypes\n" : "";  // clients since 26.06 take BF16 as its type alone
  const pictures = inputs.some(input => input.needsPillow) ? "from PIL import Image\n" : "";
  return types + pictures;
}

function httpSample(model, inputs) {
  return `import numpy as np
import tritonclient.http as client
${moreImports(inputs)}
server = client.InferenceServerClient("${location.host}"${location.protocol === "https:" ? ", ssl=True" : ""})
inputs = []
${pythonInputs(inputs)}
result = server.infer(${JSON.stringify(model.name)}, inputs, model_version="${model.version}"${pythonSequence(model)})
${model.outputs.map(output => `print(result.as_numpy(${JSON.stringify(output.name)}))`).join("\n")}`;
}

function grpcSample(model, inputs) {
  return `import queue

import numpy as np
import tritonclient.grpc as client
${moreImports(inputs)}
results = queue.Queue()
server = client.InferenceServerClient("${location.hostname}:8001")
inputs = []
${pythonInputs(inputs)}
server.start_stream(lambda result, error: results.put(error or result))
server.async_stream_infer(${JSON.stringify(model.name)}, inputs, model_version="${model.version}"${pythonSequence(model)}, enable_empty_final_response=True)
while True:
    result = results.get()
    if isinstance(result, Exception):
        raise result
    if result.get_response().parameters["triton_final_response"].bool_param:
        break
${model.outputs.map(output => `    print(result.as_numpy(${JSON.stringify(output.name)}))`).join("\n")}
server.stop_stream()`;
}
