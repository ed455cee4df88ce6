// Time series on a canvas: lines, or areas that are stacked. All plots share one cursor.

import { make, setText } from "./dom.js";
import { clock } from "./format.js";

const SPAN_S = 300;
const GAP_S = 10; // between two points: nothing was known in between
const MARGIN = { left: 40, right: 6, top: 6, bottom: 16 };
const plots = new Set();
let cursor = null; // Unix seconds; null: the latest

/** Colours of the page's theme, by the names of its variables. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export class Plot {
  /**
   * `lines`: [{name, colour, faint}], `format`: of a value; `stacked`: areas of shares of 1;
   * `small`: one of many.
   */
  constructor({ title, unit, lines, format, stacked = false, small = false }) {
    Object.assign(this, { lines, format, stacked, unit, title });
    this.points = [];
    this.limit = null;
    this.values = lines.map(() => make("b", {}, "–"));
    const legend = make("span", { class: "keys" });
    lines.forEach((line, i) => {
      const swatch = make("i", { class: `swatch of-${line.colour}${line.faint ? " faint" : ""}` });
      legend.append(make("span", {}, swatch, `${line.name} `, this.values[i]));
    });
    this.heading = make("span", { class: "title" }, title);
    this.canvas = make("canvas", { role: "img", tabindex: "0" });
    this.time = make("span", { class: "time muted" });
    this.element = make(
      "figure",
      { class: small ? "plot small" : "plot" },
      make("figcaption", {}, this.heading, unit ? make("span", { class: "unit" }, unit) : "", this.time, legend),
      this.canvas,
    );
    this.#listen();
    plots.add(this);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** `points`: [{x: Unix seconds, y: [a value or null for each line]}], in order. */
  show(points, limit = null) {
    this.points = points;
    this.limit = limit;
    this.draw();
  }

  remove() {
    plots.delete(this);
    this.element.remove();
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("mousemove", (event) => moveTo(this.#timeAt(event.offsetX)));
    canvas.addEventListener("mouseleave", () => moveTo(null));
    canvas.addEventListener("blur", () => moveTo(null));
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (event.key === "Escape" || event.key === "End") moveTo(null);
      else if (event.key === "Home") moveTo(this.points[0]?.x ?? null);
      else if (step) moveTo(this.#beside(step));
      else return;
      event.preventDefault();
    });
  }

  #beside(step) {
    const at = this.#index() + step;
    return this.points[Math.max(0, Math.min(this.points.length - 1, at))]?.x ?? null;
  }

  /** Of the point at the cursor, or of the last. */
  #index() {
    const last = this.points.length - 1;
    if (cursor === null) return last;
    let best = last;
    this.points.forEach((point, i) => {
      if (Math.abs(point.x - cursor) < Math.abs(this.points[best].x - cursor)) best = i;
    });
    return best;
  }

  #timeAt(offset) {
    const { left, right } = MARGIN;
    const part = (offset - left) / (this.canvas.clientWidth - left - right);
    return this.#end() - SPAN_S * (1 - part);
  }

  #end = () => this.points.at(-1)?.x ?? Date.now() / 1e3;

  #top() {
    if (this.stacked) return 1;
    const since = this.#end() - SPAN_S;
    const shown = this.points.filter((point) => point.x >= since).flatMap((point) => point.y);
    return niceTop(Math.max(this.limit ?? 0, ...shown.filter((value) => value !== null)));
  }

  draw() {
    const { canvas } = this;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const top = this.#top();
    const end = this.#end();
    const x = (at) => MARGIN.left + (1 - (end - at) / SPAN_S) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => MARGIN.top + (1 - value / top) * (height - MARGIN.top - MARGIN.bottom);
    this.#grid(context, { x, y, top, end, width, height });
    context.save();
    context.beginPath();
    context.rect(MARGIN.left, 0, width - MARGIN.left - MARGIN.right, height);
    context.clip();
    if (this.stacked) this.#areas(context, x, y);
    else this.lines.forEach((line, i) => this.#line(context, line, i, x, y));
    if (this.limit !== null) this.#limit(context, y, width);
    context.restore();
    this.#tell(context, x, y, height);
  }

  #grid(context, { x, y, top, end, width, height }) {
    context.font = `10px ${getComputedStyle(document.body).fontFamily}`;
    context.strokeStyle = colour("grid");
    context.fillStyle = colour("muted");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const part of this.stacked ? [0, 0.5, 1] : [0, 1 / 4, 1 / 2, 3 / 4, 1]) {
      const at = Math.round(y(part * top)) + 0.5;
      context.beginPath();
      context.moveTo(MARGIN.left, at);
      context.lineTo(width - MARGIN.right, at);
      context.stroke();
      if (part * 2 === Math.round(part * 2)) context.fillText(this.format(part * top), MARGIN.left - 5, at);
    }
    context.textBaseline = "alphabetic";
    const step = width > 380 ? 60 : 150;
    for (let back = 0; back <= SPAN_S; back += step) {
      context.textAlign = back === 0 ? "right" : back === SPAN_S ? "left" : "center";
      context.fillText(back ? `−${back / 60} min` : "now", x(end - back), height - 3);
    }
  }

  #line(context, line, i, x, y) {
    context.strokeStyle = colour(line.colour);
    context.globalAlpha = line.faint ? 0.45 : 1;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.beginPath();
    let before = null;
    for (const point of this.points) {
      const value = point.y[i];
      if (value !== null) {
        const goesOn = before !== null && point.x - before <= GAP_S;
        if (goesOn) context.lineTo(x(point.x), y(value));
        else {
          context.moveTo(x(point.x) - 1, y(value));
          context.lineTo(x(point.x), y(value));
        }
        before = point.x;
      }
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  #areas(context, x, y) {
    for (let i = this.lines.length - 1; i >= 0; i -= 1) {
      const upTo = (point) => point.y.slice(0, i + 1).reduce((sum, value) => sum + value, 0);
      context.fillStyle = colour(this.lines[i].colour);
      context.globalAlpha = this.lines[i].faint ? 0.35 : 0.9;
      for (const run of runs(this.points)) {
        context.beginPath();
        context.moveTo(x(run[0].x), y(0));
        for (const point of run) context.lineTo(x(point.x), y(upTo(point)));
        context.lineTo(x(run.at(-1).x), y(0));
        for (const point of [...run].reverse()) {
          const below = i ? point.y.slice(0, i).reduce((sum, value) => sum + value, 0) : 0;
          context.lineTo(x(point.x), y(below));
        }
        context.fill();
      }
    }
    context.globalAlpha = 1;
  }

  #limit(context, y, width) {
    context.strokeStyle = colour("bad");
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(MARGIN.left, y(this.limit));
    context.lineTo(width - MARGIN.right, y(this.limit));
    context.stroke();
    context.setLineDash([]);
  }

  #tell(context, x, y, height) {
    const point = this.points[this.#index()];
    this.values.forEach((element, i) => setText(element, point ? this.format(point.y[i]) : "–"));
    setText(this.time, cursor !== null && point ? clock(point.x) : "");
    const said = this.lines.map((line, i) => `${line.name} ${point ? this.format(point.y[i]) : "unknown"}`);
    const when = cursor !== null && point ? clock(point.x) : "now";
    this.canvas.setAttribute("aria-label", `${this.title}, ${this.unit ?? ""} ${when}: ${said.join(", ")}`);
    if (cursor === null || !point) return;
    context.strokeStyle = colour("muted");
    context.beginPath();
    context.moveTo(Math.round(x(point.x)) + 0.5, MARGIN.top);
    context.lineTo(Math.round(x(point.x)) + 0.5, height - MARGIN.bottom);
    context.stroke();
  }
}

function moveTo(at) {
  cursor = at;
  plots.forEach((plot) => plot.draw());
}

/** Points without gaps between them. */
function runs(points) {
  const found = [];
  points.forEach((point, i) => {
    if (i === 0 || point.x - points[i - 1].x > GAP_S) found.push([]);
    found.at(-1).push(point);
  });
  return found;
}

/** The least of 1, 2, 4, 8 times a power of ten that is no less. */
function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 8, 10].map((factor) => factor * power).find((top) => top >= value * 1.02) ?? 20 * power;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((plot) => plot.draw()));
