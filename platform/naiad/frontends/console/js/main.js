"use strict";
// Shows the page that the address names, and keeps it up to date.

// The parts of an address such as `#/model/NAME/1/log`, and what follows its question mark.
function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try { parts = path.split("/").map(decodeURIComponent); } catch { parts = [path]; }
  return { parts, query: new URLSearchParams(query) };
}

function makeView() {
  const { parts: [name, ...rest], query } = readAddress();
  if (name === "" && !rest.length) return new ModelsPage(query);
  if (name === "model" && (rest.length === 2 || rest.length === 3)) return new ModelPage(...rest);
  if (name === "activity" && !rest.length) return new ActivityPage();
  if (name === "graph" && !rest.length) return new GraphPage();
  if (name === "environments" && !rest.length) return new EnvironmentsPage();
  return new UnknownPage();
}

class UnknownPage {
  constructor() {
    this.node = h("section", { class: "card" }, h("h1", {}, "No such page"), h("p", {}, "There is no page ", h("code", {}, location.hash), "."), h("p", {}, h("a", { href: "#/" }, "All models")));
  }

  close() { /* nothing runs */ }
}

function route(event) {
  if (app.view) app.view.close();
  app.view = makeView();
  get("main").replaceChildren(app.view.node);
  const page = readAddress().parts[0];
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.getAttribute("href") === `#/${page === "model" ? "" : page}`;
    if (isCurrent) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (event) {
    scrollTo(0, 0);
    get("main").focus({ preventScroll: true });  // for screen readers: a new page begins here
  }
}

app.listeners.add(state => { if (app.view && app.view.update) app.view.update(state); });
addEventListener("hashchange", route);
poll().then(() => { if (!app.view) route(); });
