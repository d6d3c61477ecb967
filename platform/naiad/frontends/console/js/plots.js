"use strict";
// Plots of the last hour. The server has the samples, so a page that was just opened shows them, too.

// Scales of figures: units with their sizes, ascending. All marks of an axis have the unit of the highest one.
const PLAIN = [["", 1], ["k", 1e3], ["M", 1e6]], DURATION = [["ms", 1], ["s", 1e3]], SIZE = [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9]];
// The color `bad` means failed, and only that.
const PLOTS = [
  { title: "Throughput", unit: "/s", format: formatNumber, scale: PLAIN, series: [["requests", "requests"], ["failures", "failed", "--bad"]] },
  { title: "Latency", unit: "", format: formatMs, scale: DURATION, series: [["p50", "p50"], ["p95", "p95"]], gaps: true },
  { title: "Queue", unit: "", format: formatNumber, scale: PLAIN, series: [["waiting", "waiting", "--plot-2"], ["running", "running", "--plot-3"]], isWhole: true },
  { title: "Memory", unit: "", format: formatBytes, scale: SIZE, series: [["memory", "resident"]], isWhole: true },
  { title: "Time to first response", unit: "", format: formatMs, scale: DURATION, series: [["first_p50", "p50"], ["first_p95", "p95"]], gaps: true, optional: true },
  { title: "Tokens", unit: "/s", format: formatNumber, scale: PLAIN, series: [["tokens", "generated"]], optional: true },
  { title: "Processor", unit: "", format: formatCores, scale: PLAIN, series: [["cpu", "cores in use"]] },
];
const COLORS = ["--plot-1", "--plot-4"];
// Steps of the axes: 1, 2 and 5 with powers of ten, which the formats show exactly.
const STEPS = Array.from({ length: 54 }, (_, i) => Number(`${[1, 2, 5][i % 3]}e${Math.floor(i / 3) - 2}`));
const TIME_STEPS = [1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 300, 600, 900, 1200, 1800, 3600];
const RANGES = [["5 min", 300], ["15 min", 900], ["1 hour", 3600]];
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Plot {
  constructor(spec, level) {
    this.spec = spec;
    this.latest = h("b", {});
    this.area = h("div", { class: "area" });
    const legend = h("div", { class: "legend", "aria-hidden": "true" }, spec.series.map(([, label], i) => [this.swatch(i), label]));
    this.node = h("section", { class: "card plot" }, h(level, {}, h("span", {}, spec.title), this.latest), legend, this.area);
    this.chart = null;
  }

  swatch(i) {
    const mark = h("i");
    mark.style.background = `var(${this.colorOf(i)})`;
    return mark;
  }

  colorOf(i) {
    return this.spec.series[i][2] || COLORS[i];
  }

  draw(samples, seconds) {
    const times = samples.time;
    const values = this.spec.series.map(([name]) => samples.figures[name] || new Array(times.length).fill(this.spec.gaps ? null : 0));
    const isKnown = this.spec.series.some(([name]) => (samples.figures[name] || []).some(value => value !== null));
    this.node.hidden = Boolean(this.spec.optional) && !isKnown;
    if (this.node.hidden) return;
    const last = values.map(list => list.length ? list[list.length - 1] : null);
    const text = last[0] === null ? "idle" : this.spec.gaps ? pairOf(last) : this.spec.format(last[0]) + this.spec.unit;
    setText(this.latest, times.length ? text : "");
    const end = times.length ? times[times.length - 1] : Date.now() / 1000;
    // A server that just started fills the width with what there is, but at least with a minute.
    this.range = [Math.min(Math.max(end - seconds, times.length ? times[0] : 0), end - 60), end];
    const data = [times, ...values];
    if (this.chart) this.chart.setData(data); else this.create(data);
    this.area.setAttribute("role", "img");
    this.area.setAttribute("aria-label", `${this.spec.title}, now ${text}, highest ${this.spec.format(Math.max(0, ...values.flat().filter(value => value !== null)))}${this.spec.unit}`);
  }

  create(data) {
    const { spec } = this;
    const tip = h("div", { class: "tip", hidden: true });
    const axis = { stroke: color("--soft"), font: "11px system-ui", grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    // Without values, the axis has no scale: only zero is named.
    const named = (chart, marks) => chart.data.slice(1).some(values => values.some(value => value > 0)) ? marks : marks.map(mark => mark ? null : 0);
    this.chart = new uPlot({
      width: Math.max(this.area.clientWidth, 200),
      height: this.area.clientHeight || 130,
      padding: [8, 26, 0, 0],  // half of a time at the right edge
      // The line is at the sample whose values are told, not between two.
      cursor: { sync: { key: "naiad" }, drag: { x: false, y: false }, points: { size: 6 }, move: (chart, left, top) => [left < 0 ? left : chart.valToPos(chart.data[0][chart.posToIdx(left)], "x"), top] },
      legend: { show: false },
      scales: { x: { range: () => this.range }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.12 : 1] } },
      series: [{}, ...spec.series.map(([, label], i) => ({
        label, stroke: color(this.colorOf(i)), width: 1.6, spanGaps: false,
        fill: i === 0 && spec.series.length === 1 ? `${color(this.colorOf(0))}22` : undefined,
        // A single sample between gaps has no line: it is a point.
        points: { show: Boolean(spec.gaps), size: 3, filter: (_, series) => isolated(this.chart ? this.chart.data[series] : data[series]) },
      }))],
      axes: [
        { ...axis, size: 26, space: 66, incrs: TIME_STEPS, values: (_, marks, __, ___, step) => marks.map(mark => formatClock(mark * 1000, step < 60 ? CLOCK : { ...CLOCK, second: undefined })) },
        { ...axis, grid: { ...axis.grid, filter: named }, filter: named, size: 58, space: 28, incrs: spec.isWhole ? STEPS.filter(step => step >= 1) : STEPS, values: (_, marks) => formatMarks(marks, spec) },
      ],
      hooks: { setCursor: [chart => this.showTip(chart, tip)] },
    }, data, this.area);
    this.area.append(tip);
  }

  showTip(chart, tip) {
    const { idx, left } = chart.cursor;
    tip.hidden = idx === null || idx === undefined || left < 0;
    if (tip.hidden) return;
    const { spec } = this;
    tip.replaceChildren(h("div", { class: "soft" }, formatClock(chart.data[0][idx] * 1000)),
      ...spec.series.map(([, label], i) => h("div", {}, this.swatch(i), `${label} `, h("b", {}, chart.data[i + 1][idx] === null ? "–" : spec.format(chart.data[i + 1][idx]) + spec.unit))));
    const place = chart.bbox.left / devicePixelRatio + left;
    const width = tip.offsetWidth;
    tip.style.left = `${place + width + 20 > this.area.clientWidth ? place - width - 10 : place + 10}px`;
    tip.style.top = "6px";
  }

  resize() {
    if (this.chart && this.area.clientWidth) this.chart.setSize({ width: this.area.clientWidth, height: this.area.clientHeight });
  }

  destroy() {
    if (this.chart) this.chart.destroy();
    this.chart = null;
    this.area.replaceChildren();
  }
}

// "8.7 / 34.8 ms": both with the unit and the decimals of the second.
function pairOf([low, high]) {
  if (high === null) return formatMs(low);
  return `${formatMs(low, high).replace(/ .*/, "")} / ${formatMs(high)}`;
}

// The marks of an axis: all with one unit and as many decimals as tell them apart.
function formatMarks(marks, { scale, unit }) {
  const shown = marks.filter(mark => mark !== null);
  const highest = Math.max(0, ...shown);
  const step = shown.length > 1 ? shown[1] - shown[0] : highest || 1;
  const [name, size] = scale.findLast(([, least]) => highest >= least) || scale[0];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  const told = `${name && (scale === PLAIN ? "" : " ")}${name}${unit}`;
  return marks.map(mark => mark === null ? null : mark ? (mark / size).toFixed(decimals) + told : "0");
}

function isolated(values) {
  const found = [];
  for (let i = 0; i < values.length; i++) {
    const isGap = at => at < 0 || at >= values.length || values[at] === null || values[at] === undefined;
    if (!isGap(i) && isGap(i - 1) && isGap(i + 1)) found.push(i);
  }
  return found.length ? found : null;
}

// Some plots of one model, or of the server (key ""), which follow the samples until they are closed.
class Plots {
  constructor(key, titles, { isLarge = false, isOfModel = false, level = "h2" } = {}) {
    this.samples = new Samples(key);
    this.seconds = Number(localStorage.getItem("naiad.range")) || 900;
    this.plots = PLOTS.filter(spec => !titles || titles.includes(spec.title)).map(spec => new Plot(spec, level));
    // On phones the plots are a row that scrolls, which keyboards must reach.
    const region = isLarge ? {} : { tabindex: "0", role: "region", "aria-label": "plots" };
    this.node = h("div", { class: `plots ${isLarge ? "large" : ""} ${isOfModel ? "rows" : ""}`, ...region }, this.plots.map(plot => plot.node));
    this.resizing = new ResizeObserver(() => this.plots.forEach(plot => plot.resize()));
    for (const plot of this.plots) this.resizing.observe(plot.area);
    this.isClosed = false;
    this.follow();
  }

  chooser() {
    const buttons = RANGES.map(([label, seconds]) => h("button", { type: "button", "aria-pressed": String(seconds === this.seconds), onclick: () => {
      this.seconds = seconds;
      localStorage.setItem("naiad.range", seconds);
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(RANGES[i][1] === seconds)));
      this.draw();
    } }, label));
    return h("div", { class: "segments", role: "group", "aria-label": "time shown" }, buttons);
  }

  async follow() {
    try {
      if (!document.hidden && (await this.samples.update() || !this.isDrawn) && !this.isClosed) this.draw();
    } catch { /* the header shows that the server cannot be reached */ }
    if (!this.isClosed) this.timer = setTimeout(() => this.follow(), POLL_MS);
  }

  draw() {
    this.isDrawn = true;
    this.plots.forEach(plot => plot.draw(this.samples, this.seconds));
    // The plots of a model are in two rows.
    this.node.style.setProperty("--columns", Math.ceil(this.plots.filter(plot => !plot.node.hidden).length / 2));
  }

  recolor() {
    this.plots.forEach(plot => plot.destroy());
    this.draw();
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.resizing.disconnect();
    this.plots.forEach(plot => plot.destroy());
  }
}
