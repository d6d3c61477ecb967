"use strict";
// The store of environments: sizes, who uses what, and what a garbage collection would free.

class EnvironmentsPage {
  constructor() {
    this.content = h("div", {}, h("p", { class: "empty" }, "…"));
    this.node = h("div", {}, h("div", { class: "tools" }, h("h1", {}, "Environments")), this.content);
    this.seen = "";
    this.refresh();
  }

  async refresh() {
    try {
      const found = await getDocument("environments");
      const text = JSON.stringify(found);
      if (text !== this.seen) this.show(found);
      this.seen = text;
    } catch (error) {
      this.content.replaceChildren(h("p", { class: "error" }, error.message));
    }
    if (!this.isClosed) this.timer = setTimeout(() => this.refresh(), 5 * POLL_MS);
  }

  show({ store, size, entries, outside, garbage }) {
    const { unused, old, leftovers } = garbage;
    this.content.replaceChildren(
      h("div", { class: "two" },
        h("section", { class: "card" }, h("h2", {}, "Store"), facts([["folder", h("code", {}, store)], ["size", formatBytes(size)], ["environments", entries.length], ["in use", entries.filter(entry => entry.in_use).length]])),
        h("section", { class: "card" }, h("h2", {}, "Space that can be freed"), facts([
          [h("code", {}, "naiad env gc"), `${formatBytes(leftovers)}: leftovers of builds and downloads`],
          [h("code", {}, `naiad env gc --older-than=${old.days}d`), `${formatBytes(old.size + leftovers)}: the same, and ${count(old.count, "environment")} not used for ${old.days} days`],
          [h("code", {}, "naiad env gc --keep-bytes=0"), `${formatBytes(unused.size + leftovers)}: the same, and ${count(unused.count, "environment")} not in use`]]))),
      h("section", { class: "card tight" }, entries.length ? table("environments of the store", [{ text: "Environment", full: true }, "Python", "numpy", { text: "Size", number: true }, "Used by", "Last used", "Digest"], entries.sort((a, b) => b.size - a.size).map(entry => [
        h("b", {}, entry.archive.split("/").pop(), h("div", { class: "soft mono" }, entry.archive)), entry.python, entry.numpy, formatBytes(entry.size), usersNode(entry),
        entry.in_use ? pill("in use", "good") : `${formatAge(Date.now() / 1000 - entry.last_used)} ago`, h("code", { class: "digest", title: entry.digest }, entry.digest.slice(0, 12))]), "environments")
        : h("p", { class: "empty" }, "The store is empty: no model has an environment of its own.")),
      ...outside.length ? [h("section", { class: "card tight" }, table("interpreters outside of the store", [{ text: "Interpreter outside of the store", full: true }, { text: "Used by", full: true }], outside.map(each => [h("code", {}, each.python), modelLinks(each.models)])))] : []);
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
  }
}

function usersNode(entry) {
  const others = entry.models.filter(name => !entry.serving.includes(name));
  if (!entry.serving.length && !others.length) return h("span", { class: "soft" }, "no model");
  return [modelLinks(entry.serving), entry.serving.length && others.length ? ", " : "", others.length ? h("span", { class: "soft", title: "models that used it before" }, `earlier: ${others.join(", ")}`) : null];
}

function modelLinks(names) {
  const models = new Map(((app.state || {}).models || []).map(model => [model.name, model]));
  return names.map((name, i) => [i ? ", " : "", models.has(name) ? h("a", { href: modelHash(models.get(name)) }, name) : name]);
}
