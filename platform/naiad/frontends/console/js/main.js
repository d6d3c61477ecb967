"use strict";
// Shows the page that the address names, and keeps it up to date.

function makeView() {
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  if (name === "model" && rest.length >= 2) return new ModelPage(...rest);
  if (name === "activity") return new ActivityPage();
  if (name === "graph") return new GraphPage();
  if (name === "environments") return new EnvironmentsPage();
  return new ModelsPage();
}

function route(event) {
  if (app.view) app.view.close();
  app.view = makeView();
  get("main").replaceChildren(app.view.node);
  const page = location.hash.split("/")[1] || "";
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
