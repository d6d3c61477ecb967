"use strict";
// Models that use models: steps of ensembles, from their configurations, and calls, as the server counted them.

const NODE = { width: 168, height: 46, gapX: 84, gapY: 26, margin: 16 };

class GraphPage {
  constructor() {
    this.drawing = h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "models that use other models" });
    this.node = h("div", {}, h("div", { class: "tools" }, h("h1", {}, "Models that use models")), h("section", { class: "card" }, this.drawing, h("p", { class: "note" }, "Solid: steps of an ensemble. Dashed: calls that models made since the server started, with their number.")));
    this.seen = "";
    this.refresh();
  }

  async refresh() {
    try {
      const { edges } = await getDocument("graph");
      const text = JSON.stringify(edges);
      if (text !== this.seen) this.drawing.replaceChildren(...edges.length ? drawGraph(edges) : [h("p", { class: "empty" }, "No ensemble is loaded, and no model has called another one yet.")]);
      this.seen = text;
    } catch (error) {
      this.drawing.replaceChildren(h("p", { class: "error" }, error.message));
    }
    if (!this.isClosed) this.timer = setTimeout(() => this.refresh(), 2 * POLL_MS);
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
  }
}

function drawGraph(edges) {
  const joined = new Map();
  for (const edge of edges) {
    const key = `${edge.kind}\n${edge.from}\n${edge.to}`;
    const known = joined.get(key);
    if (known) known.tensors.push(...tensorsOf(edge)); else joined.set(key, { ...edge, tensors: tensorsOf(edge) });
  }
  const lines = [...joined.values()];
  const names = [...new Set(lines.flatMap(edge => [edge.from, edge.to]))];
  const column = columns(names, lines);
  const rows = [];
  const place = new Map(names.map(name => {
    const x = column.get(name), y = rows[x] = (rows[x] ?? -1) + 1;
    return [name, { x, y }];
  }));
  const tallest = Math.max(...rows.map(last => last + 1));
  for (const spot of place.values()) spot.y += (tallest - rows[spot.x] - 1) / 2;
  const width = rows.length * NODE.width + (rows.length - 1) * NODE.gapX + 2 * NODE.margin;
  const height = tallest * NODE.height + (tallest - 1) * NODE.gapY + 2 * NODE.margin + 24;
  const at = name => ({ x: NODE.margin + place.get(name).x * (NODE.width + NODE.gapX), y: NODE.margin + place.get(name).y * (NODE.height + NODE.gapY) });
  const summary = lines.map(edge => edge.kind === "call" ? `${edge.from} called ${edge.to} ${count(edge.count, "time")}` : `${edge.from} has the step ${edge.to}`);
  const states = new Map(((app.state || {}).models || []).map(model => [model.name.split("::").pop(), model]));
  return [svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "graph of models" },
    lines.map(edge => edgePath(edge, at(edge.from), at(edge.to))), lines.map(edge => edgeLabel(edge, at(edge.from), at(edge.to))),
    names.map(name => nodeBox(name, at(name), states.get(name)))),
    h("ul", { class: "hidden" }, summary.map(text => h("li", {}, text)))];
}

function tensorsOf(edge) {
  return edge.kind === "step" ? [...Object.entries(edge.inputs).map(([own, outer]) => `${outer} → ${own}`), ...Object.entries(edge.outputs).map(([own, outer]) => `${own} → ${outer}`)] : [];
}

// Each model right of all that use it; a cycle of calls is cut where it would go back.
function columns(names, edges) {
  const column = new Map(names.map(name => [name, 0]));
  for (let round = 0; round < names.length; round++) {
    let isMoved = false;
    for (const { from, to } of edges) {
      if (column.get(to) <= column.get(from) && column.get(from) + 1 < names.length && from !== to) {
        column.set(to, column.get(from) + 1);
        isMoved = true;
      }
    }
    if (!isMoved) break;
  }
  const used = [...new Set(column.values())].sort((a, b) => a - b);
  return new Map(names.map(name => [name, used.indexOf(column.get(name))]));
}

function edgePath(edge, from, to) {
  const forward = to.x > from.x;
  const x1 = from.x + NODE.width, y1 = from.y + NODE.height / 2, x2 = forward ? to.x : to.x + NODE.width, y2 = to.y + NODE.height / 2;
  const bend = forward ? (x2 - x1) / 2 : 60;
  const end = forward ? x2 - 7 : x2 + 7;
  const curve = `M${x1} ${y1}C${x1 + bend} ${y1} ${forward ? x2 - bend : x2 + bend} ${y2} ${end} ${y2}`;
  const tip = forward ? `M${x2} ${y2}l-9 -4.5v9z` : `M${x2} ${y2}l9 -4.5v9z`;
  return svg("g", {}, svg("title", {}, edge.kind === "call" ? `${count(edge.count, "call")}` : edge.tensors.join("\n")), svg("path", { d: curve, class: edge.kind }), svg("path", { d: tip, class: `tip ${edge.kind}` }));
}

function edgeLabel(edge, from, to) {
  if (edge.kind !== "call") return [];
  return svg("text", { x: (from.x + NODE.width + to.x) / 2, y: (from.y + to.y + NODE.height) / 2 + 4, "text-anchor": "middle", class: "small" }, `× ${formatNumber(edge.count)}`);
}

function nodeBox(name, { x, y }, model) {
  const shown = name.length > 22 ? `${name.slice(0, 21)}…` : name;
  const text = model ? (model.platform === "ensemble" ? "ensemble" : model.backend || model.platform) : "";
  const group = svg("g", { class: model && isFailed(model) ? "failed" : "" },
    svg("rect", { x, y, width: NODE.width, height: NODE.height, rx: 10 }), svg("title", {}, name),
    svg("text", { x: x + NODE.width / 2, y: y + 20, "text-anchor": "middle" }, shown), svg("text", { x: x + NODE.width / 2, y: y + 36, "text-anchor": "middle", class: "small" }, text));
  return model ? svg("a", { href: modelHash(model), "aria-label": `${name} ${text}` }, group) : group;
}
