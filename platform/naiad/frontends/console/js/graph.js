"use strict";
// Models that use models: steps of ensembles, from their configurations, and calls, as the server counted them.

const NODE = { height: 46, margin: 16 };
const WIDEST = 168, NARROWEST = 130;
// Space between models that use each other, and between models beside each other, from left to right or from top to bottom.
const GAPS = { horizontal: [110, 26], vertical: [64, 12] };

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
      const width = this.drawing.clientWidth;
      const text = JSON.stringify([edges, width]);
      if (text !== this.seen) this.drawing.replaceChildren(...edges.length ? drawGraph(edges, width) : [h("p", { class: "empty" }, "No ensemble is loaded, and no model has called another one yet.")]);
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

// From left to right, or from top to bottom if that is too wide for *available*.
function drawGraph(edges, available) {
  const joined = new Map();
  for (const edge of edges) {
    const key = `${edge.kind}\n${edge.from}\n${edge.to}`;
    const known = joined.get(key);
    if (known) known.tensors.push(...tensorsOf(edge)); else joined.set(key, { ...edge, tensors: tensorsOf(edge) });
  }
  const lines = [...joined.values()];
  const names = [...new Set(lines.flatMap(edge => [edge.from, edge.to]))];
  const column = columns(names, lines);
  const rows = [];  // index of the last model of each column
  const place = new Map(names.map(name => {
    const x = column.get(name), y = rows[x] = (rows[x] ?? -1) + 1;
    return [name, { x, y }];
  }));
  const tallest = Math.max(...rows.map(last => last + 1));
  for (const spot of place.values()) spot.y += (tallest - rows[spot.x] - 1) / 2;
  const extent = (number, size, gap) => number * size + (number - 1) * gap + 2 * NODE.margin;
  const isVertical = extent(rows.length, WIDEST, GAPS.horizontal[0]) > available;
  const [least, beside] = isVertical ? GAPS.vertical : GAPS.horizontal;
  // Numbers of calls need space along their lines, as far as there is some.
  const calls = lines.filter(edge => edge.kind === "call").length;
  const most = isVertical ? 3 * least : (available - rows.length * WIDEST - 2 * NODE.margin) / Math.max(1, rows.length - 1);
  const along = Math.max(least, Math.min(least + (isVertical ? 8 : 20) * Math.max(0, calls - 2), most, 360));
  const fitting = Math.floor((available - 2 * NODE.margin - (tallest - 1) * beside) / tallest);
  NODE.width = isVertical ? Math.max(NARROWEST, Math.min(WIDEST, fitting)) : WIDEST;
  const width = isVertical ? extent(tallest, NODE.width, beside) : extent(rows.length, NODE.width, along);
  const height = isVertical ? extent(rows.length, NODE.height, along) : extent(tallest, NODE.height, beside) + 24;
  const at = name => {
    const { x, y } = place.get(name);
    return isVertical ? { x: NODE.margin + y * (NODE.width + beside), y: NODE.margin + x * (NODE.height + along) } : { x: NODE.margin + x * (NODE.width + along), y: NODE.margin + y * (NODE.height + beside) };
  };
  const summary = lines.map(edge => edge.kind === "call" ? `${edge.from} called ${edge.to} ${count(edge.count, "time")}` : `${edge.from} has the step ${edge.to}`);
  const states = new Map(((app.state || {}).models || []).map(model => [model.name.split("::").pop(), model]));
  return [svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "graph of models" },
    lines.map(edge => edgePath(edge, at(edge.from), at(edge.to), isVertical)), edgeLabels(lines, names, at, isVertical),
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

// Where an edge leaves one box and reaches the other; one that goes back reaches the far side.
function endsOf(from, to, isVertical) {
  const isForward = isVertical ? to.y > from.y : to.x > from.x;
  const [x1, y1] = isVertical ? [from.x + NODE.width / 2, from.y + NODE.height] : [from.x + NODE.width, from.y + NODE.height / 2];
  const [x2, y2] = isVertical ? [to.x + NODE.width / 2, to.y + (isForward ? 0 : NODE.height)] : [to.x + (isForward ? 0 : NODE.width), to.y + NODE.height / 2];
  return { x1, y1, x2, y2, sign: isForward ? 1 : -1, bend: isForward ? (isVertical ? y2 - y1 : x2 - x1) / 2 : 60 };
}

function edgePath(edge, from, to, isVertical) {
  const { x1, y1, x2, y2, sign, bend } = endsOf(from, to, isVertical);
  const [dx, dy] = isVertical ? [0, 1] : [1, 0];
  const curve = `M${x1} ${y1}C${x1 + dx * bend} ${y1 + dy * bend} ${x2 - sign * dx * bend} ${y2 - sign * dy * bend} ${x2 - sign * dx * 7} ${y2 - sign * dy * 7}`;
  const tip = isVertical ? `M${x2} ${y2}l-4.5 ${-9 * sign}h9z` : `M${x2} ${y2}l${-9 * sign} -4.5v9z`;
  return svg("g", {}, svg("title", {}, edge.kind === "call" ? `${count(edge.count, "call")}` : edge.tensors.join("\n")), svg("path", { d: curve, class: edge.kind }), svg("path", { d: tip, class: `tip ${edge.kind}` }));
}

// Places along a line where its label may be, the middle first.
const LABEL_PLACES = [0.5, 0.45, 0.55, 0.4, 0.6, 0.35, 0.65, 0.3, 0.7, 0.25, 0.75, 0.2, 0.8, 0.15, 0.85];
const LINE_POINTS = 60;

// The numbers of calls, each at the place of its line where it covers no other line, label or model.
function edgeLabels(edges, names, at, isVertical) {
  const points = edges.map(edge => linePoints(at(edge.from), at(edge.to), isVertical));
  const taken = names.map(name => ({ left: at(name).x, top: at(name).y, right: at(name).x + NODE.width, bottom: at(name).y + NODE.height }));
  return edges.map((edge, own) => {
    if (edge.kind !== "call") return [];
    const text = `× ${formatNumber(edge.count)}`;
    const width = 6.5 * text.length + 6;
    const boxes = LABEL_PLACES.map(place => points[own][Math.round(place * LINE_POINTS)]).map(([x, y]) => ({ x, y, left: x - width / 2, right: x + width / 2, top: y - 9, bottom: y + 9 }));
    const covered = box => taken.filter(other => overlap(box, other)).length * LINE_POINTS
      + points.reduce((all, line, i) => i === own ? all : all + line.filter(([x, y]) => x > box.left - 3 && x < box.right + 3 && y > box.top - 3 && y < box.bottom + 3).length, 0);
    const box = boxes.reduce((best, each) => covered(each) < covered(best) ? each : best);
    taken.push(box);
    // The box hides the part of the line behind the text.
    return [svg("rect", { x: box.left, y: box.top, width, height: 18, rx: 4, class: "label" }), svg("text", { x: box.x, y: box.y + 4, "text-anchor": "middle", class: "small" }, text)];
  });
}

function overlap(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

// Points of the curve that `edgePath` draws.
function linePoints(from, to, isVertical) {
  const { x1, y1, x2, y2, sign, bend } = endsOf(from, to, isVertical);
  const [dx, dy] = isVertical ? [0, bend] : [bend, 0];
  const xs = [x1, x1 + dx, x2 - sign * dx, x2], ys = [y1, y1 + dy, y2 - sign * dy, y2];
  const value = ([a, b, c, d], t) => a * (1 - t) ** 3 + 3 * b * t * (1 - t) ** 2 + 3 * c * t * t * (1 - t) + d * t ** 3;
  return Array.from({ length: LINE_POINTS + 1 }, (_, i) => [value(xs, i / LINE_POINTS), value(ys, i / LINE_POINTS)]);
}

function nodeBox(name, { x, y }, model) {
  const room = Math.floor(NODE.width / 7.6);  // letters
  const shown = name.length > room ? `${name.slice(0, room - 1)}…` : name;
  const text = model ? (model.platform === "ensemble" ? "ensemble" : model.backend || model.platform) : "";
  const group = svg("g", { class: model && isFailed(model) ? "failed" : "" },
    svg("rect", { x, y, width: NODE.width, height: NODE.height, rx: 10 }), svg("title", {}, name),
    svg("text", { x: x + NODE.width / 2, y: y + 20, "text-anchor": "middle" }, shown), svg("text", { x: x + NODE.width / 2, y: y + 36, "text-anchor": "middle", class: "small" }, text));
  return model ? svg("a", { href: modelHash(model), "aria-label": `${name} ${text}` }, group) : group;
}
