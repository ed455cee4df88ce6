// Which time series there are, from the points that the server tells.

import { $, make } from "./dom.js";
import { number } from "./format.js";
import { Plot } from "./plot.js";

const latency = [
  { name: "p50", colour: "accent" },
  { name: "p90", colour: "accent", faint: true },
];
const common = {
  ttft: new Plot({ title: "Time to first token", unit: "ms", format: number, lines: latency }),
  tpot: new Plot({ title: "Time per output token", unit: "ms", format: number, lines: latency }),
  rate: new Plot({
    title: "Throughput",
    unit: "tok/s",
    format: number,
    lines: [
      { name: "output", colour: "decode" },
      { name: "prompt", colour: "prefill" },
    ],
  }),
  load: new Plot({
    title: "Requests at workers",
    format: number,
    lines: [
      { name: "running", colour: "decode" },
      { name: "waiting", colour: "queue" },
    ],
  }),
};
const pages = new Map(); // worker's name -> its Plot
const workers = make("div", { class: "plots small" });
const shown = $("#plots");

shown.append(...Object.values(common).map((plot) => plot.element));
shown.after(make("h3", {}, "KV pages of each worker, % of its pool"), workers);

const inMs = (seconds) => (seconds === null ? null : seconds * 1e3);
const percent = (value) => number(value * 100);
const total = (point, i) => Object.values(point.workers).reduce((sum, load) => sum + load[i], 0);

/** `points`: as the server tells them; `slo`: what is owed, in seconds; `names`: of workers. */
export function showPlots(points, slo, names) {
  const series = (...of) => points.map((point) => ({ x: point.unix_s, y: of.map((one) => one(point)) }));
  const limit = (seconds) => (seconds === null ? null : seconds * 1e3);
  const latencies = (key) => series((p) => inMs(p[key].p50), (p) => inMs(p[key].p90));
  common.ttft.show(latencies("ttft_s"), limit(slo.ttft_s));
  common.tpot.show(latencies("tpot_s"), limit(slo.tpot_s));
  common.rate.show(series((p) => p.output_tokens_per_s, (p) => p.prompt_tokens_per_s));
  common.load.show(series((p) => total(p, 3), (p) => total(p, 4)));
  const wanted = new Set(names);
  for (const [name, plot] of pages) {
    if (!wanted.has(name)) {
      plot.remove();
      pages.delete(name);
    }
  }
  for (const name of wanted) plotOf(name).show(occupancy(points, name));
}

function plotOf(name) {
  if (!pages.has(name)) {
    const role = name.startsWith("prefill") ? "prefill" : "decode";
    const lines = [
      { name: "held", colour: role },
      { name: "cached", colour: role, faint: true },
    ];
    const plot = new Plot({ title: name, lines, format: percent, stacked: true, small: true });
    pages.set(name, plot);
    workers.append(plot.element);
  }
  return pages.get(name);
}

/** A worker that is not up tells nothing: a gap. */
function occupancy(points, name) {
  return points
    .filter((point) => point.workers[name]?.[2])
    .map((point) => {
      const [held, cached, all] = point.workers[name];
      return { x: point.unix_s, y: [held / all, cached / all] };
    });
}
