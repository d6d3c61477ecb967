"use strict";
// A conversation with a model that generates text, and the similarity of two texts.

const CHAT_SETTINGS = "naiad.chat";

class Chat {
  constructor(model) {
    this.model = model;
    this.names = new Set(model.inputs.map(input => input.name));
    this.takesMessages = this.names.has("messages");
    this.said = [];
    this.abort = null;
    const kept = JSON.parse(localStorage.getItem(CHAT_SETTINGS) || "{}");
    const keep = () => localStorage.setItem(CHAT_SETTINGS, JSON.stringify({ system: this.system.value, temperature: this.temperature.value, tokens: this.tokens.value }));
    this.system = h("textarea", { rows: "2", placeholder: this.takesMessages ? "none" : "this model takes no conversation", disabled: !this.takesMessages, value: kept.system || "", onchange: keep });
    this.temperature = h("input", { type: "number", min: "0", max: "2", step: "0.1", placeholder: "the model's", value: kept.temperature || "", onchange: keep });
    this.tokens = h("input", { type: "number", min: "1", step: "1", value: kept.tokens || "512", onchange: keep });
    this.talk = h("div", { class: "talk", role: "log", "aria-label": "conversation", tabindex: "0" });
    this.text = h("textarea", { rows: "1", "aria-label": "message", placeholder: "Message; Enter sends, Shift-Enter begins a line", onkeydown: event => this.onKey(event), oninput: () => this.grow() });
    this.go = h("button", { class: "main" }, "Send");
    this.forget = h("button", { type: "button", onclick: () => this.restart() }, "New chat");
    this.greet();
    this.node = h("section", { class: "card" },
      h("div", { class: "tools" }, h("h2", {}, "Chat"), h("span", { class: "grow" }), this.forget), this.talk,
      h("form", { class: "composer", onsubmit: event => { event.preventDefault(); if (this.abort) this.abort.abort(); else this.send(); } }, this.text, this.go),
      h("details", {}, h("summary", {}, "Settings"), h("div", { class: "settings" }, h("label", { class: "wide" }, "System prompt", this.system), h("label", {}, "Temperature", this.temperature), h("label", {}, "Max tokens", this.tokens))));
  }

  greet() {
    this.talk.replaceChildren(h("p", { class: "empty" }, this.takesMessages ? "The model receives the whole conversation." : "The model receives the last message only."));
  }

  onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!this.abort) this.send();
    }
  }

  grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${this.text.scrollHeight + 2}px`;
  }

  restart() {
    if (this.abort) this.abort.abort();
    this.said = [];
    this.greet();
    this.text.focus();
  }

  async send() {
    const text = this.text.value.trim();
    if (!text) return;
    if (!this.said.length) this.talk.replaceChildren();
    this.text.value = "";
    this.grow();
    const said = this.said;  // a new chat may begin before this response ends
    const abort = this.abort = new AbortController();
    said.push({ role: "user", content: text });
    this.go.textContent = "Stop";
    const content = h("div"), figures = h("div", { class: "figures" });
    const answer = h("div", { class: "say model" }, h("span", { class: "hidden" }, "model: "), content, figures);
    this.talk.append(h("div", { class: "say user" }, h("span", { class: "hidden" }, "you: "), text), answer);
    this.talk.scrollTop = this.talk.scrollHeight;
    const reply = new Reply(content, figures, this.talk);
    try {
      await streamGenerate(this.model, JSON.stringify(this.body(text, said)), abort.signal, event => reply.add(event));
      reply.end("");
      said.push({ role: "assistant", content: reply.text });
    } catch (error) {
      if (error.name === "AbortError") {
        reply.end("stopped");
        said.push({ role: "assistant", content: reply.text });
      } else {
        reply.end("");
        answer.append(h("p", { class: "error", role: "alert" }, error.message));
        said.pop();
      }
    }
    if (this.abort === abort) {
      this.abort = null;
      this.go.textContent = "Send";
    }
  }

  body(text, said) {
    const system = this.system.value.trim();
    const messages = system ? [{ role: "system", content: system }, ...said] : said;
    const body = this.takesMessages ? { messages: JSON.stringify({ messages }) } : { text_input: text };
    const sampling = { max_tokens: Number(this.tokens.value) || 512 };
    if (this.temperature.value !== "") sampling.temperature = Number(this.temperature.value);
    const optional = { stream: true, exclude_input_in_output: true, return_num_output_tokens: true, sampling_parameters: JSON.stringify(sampling) };
    for (const [name, value] of Object.entries(optional)) if (this.names.has(name)) body[name] = value;
    return body;
  }

  close() {
    if (this.abort) this.abort.abort();
  }
}

// One response as it arrives: its text, and how fast it came.
class Reply {
  constructor(content, figures, talk) {
    Object.assign(this, { content, figures, talk, text: "", tokens: 0, pieces: 0, begun: performance.now(), first: 0, last: 0, drawing: 0 });
    this.figures.textContent = "…";
  }

  add(event) {
    const piece = [event.text_output ?? ""].flat().join("");
    this.tokens += [event.num_output_tokens ?? 0].flat().reduce((all, each) => all + each, 0);
    if (!piece) return;
    this.last = performance.now();
    if (!this.first) this.first = this.last;
    this.pieces += 1;
    this.text += piece;
    this.drawing ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.drawing = 0;
    const isAtEnd = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight < 60;
    this.content.replaceChildren(renderMarkdown(this.text));
    setText(this.figures, this.summary());
    if (isAtEnd) this.talk.scrollTop = this.talk.scrollHeight;
  }

  summary() {
    if (!this.first) return "";
    // A piece may be several tokens: models that do not count their tokens have pieces.
    const [number, noun] = this.tokens ? [this.tokens, "token"] : [this.pieces, "piece"];
    const seconds = (this.last - this.first) / 1000;
    const speed = number > 1 && seconds > 0 ? `${formatNumber((number - 1) / seconds)} ${noun}s/s, ` : "";
    return `first ${noun} after ${formatMs(this.first - this.begun)}, ${speed}${count(number, noun)}`;
  }

  end(remark) {
    cancelAnimationFrame(this.drawing);
    this.draw();
    setText(this.figures, [this.summary(), remark].filter(Boolean).join(", "));
  }
}

class Similarity {
  constructor(model) {
    this.model = model;
    this.texts = ["First text", "Second text"].map(label => h("textarea", { rows: "3", "aria-label": label, placeholder: label }));
    this.result = h("div", { role: "status" }, h("p", { class: "note" }, "Compare two texts to see the cosine of the angle between their vectors: 1 for the same direction, 0 for unrelated ones."));
    this.node = h("form", { class: "card", onsubmit: event => { event.preventDefault(); this.compare(); } }, h("h2", {}, "Similarity of two texts"), h("div", { class: "two" }, this.texts), h("div", { class: "tools" }, h("button", { class: "main" }, "Compare")), this.result);
  }

  async compare() {
    const begun = performance.now();
    try {
      const [first, second] = await Promise.all(this.texts.map(each => this.embed(each.value)));
      if (first.length !== second.length) throw new Error(`the vectors have ${first.length} and ${second.length} numbers`);
      const dot = (a, b) => a.reduce((all, value, i) => all + value * b[i], 0);
      const cosine = dot(first, second) / Math.sqrt(dot(first, first) * dot(second, second) || 1);
      const fill = h("i", { width: `${Math.max(0, cosine) * 100}%` });
      this.result.replaceChildren(h("div", { class: "score", id: "similarity" }, cosine.toFixed(3)), h("div", { class: "meter", "aria-hidden": "true" }, fill), h("p", { class: "note" }, `${count(first.length, "number")} in each vector, ${formatMs(performance.now() - begun)}`));
    } catch (error) {
      this.result.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
    }
  }

  async embed(text) {
    const names = new Set(this.model.inputs.map(input => input.name));
    const body = { embedding_request: JSON.stringify({ input: text }), ...(names.has("stream") ? { stream: false } : {}) };
    let vector = null;
    await streamGenerate(this.model, JSON.stringify(body), undefined, event => { vector ??= JSON.parse([event.text_output].flat()[0]); });
    if (!Array.isArray(vector)) throw new Error("the model returned no vector");
    return vector;
  }
}
