// The workers, one a row.

import { $, keyed, labels, make, setText, tips } from "./dom.js";
import { bytes, duration, ms, number, share } from "./format.js";

const NUMBERS = ["up", "restarts", "running", "waiting", "queued", "rate", "busy", "step", "heard", "memory"];
const LABELS = labels("#workers"); // of numbers: a narrow page shows them in the cells
const STALE_S = 3; // without a heartbeat: they come every second, or sooner
const body = $("#workers tbody");

tips(body, "tr", (row) => details(row.worker));

export function showWorkers(workers) {
  keyed(body, workers, (worker) => worker.name, create, update);
}

function create(worker) {
  const cells = NUMBERS.map((name, i) => make("td", { role: "cell", class: `n ${name}`, "data-label": LABELS[i] }));
  const held = make("i", { class: `held of-${worker.role}` });
  const cached = make("i", { class: `cached of-${worker.role}` });
  const bar = make("span", { class: "pagebar", "aria-hidden": "true" }, held, cached);
  return make(
    "tr",
    { tabindex: "0", role: "row" },
    make("th", { scope: "row", role: "rowheader" }, make("i", { class: `swatch of-${worker.role}` }), worker.name),
    make("td", { class: "state", role: "cell" }, make("span", { class: "pill" })),
    ...cells,
    make("td", { class: "pages", role: "cell" }, bar, make("span", { class: "pagetext" })),
  );
}

function update(row, worker) {
  row.worker = worker;
  row.dataset.worker = worker.name;
  const pill = row.querySelector(".pill");
  pill.dataset.state = worker.state;
  setText(pill, worker.state);
  const up = worker.state === "up";
  const values = [
    duration(worker.uptime_s),
    worker.restarts === null ? "–" : String(worker.restarts),
    ...[worker.running, worker.waiting, worker.queued_tokens].map((n) => (up ? number(n) : "–")),
    number(worker.tokens_per_s),
    share(worker.busy_share),
    ms(worker.step_s),
    worker.heartbeat_age_s === null ? "–" : worker.heartbeat_age_s.toFixed(1),
    bytes(worker.memory_bytes),
  ];
  const cells = row.querySelectorAll("td.n");
  values.forEach((value, i) => setText(cells[i], value));
  row.querySelector(".restarts").classList.toggle("bad", worker.restarts > 0);
  row.querySelector(".heard").classList.toggle("bad", worker.heartbeat_age_s > STALE_S);
  const { held, cached, free, total } = worker.pages ?? { held: 0, cached: 0, free: 0, total: 0 };
  row.querySelector(".held").style.width = `${total ? (100 * held) / total : 0}%`;
  row.querySelector(".cached").style.width = `${total ? (100 * cached) / total : 0}%`;
  setText(row.querySelector(".pagetext"), total ? `${held} · ${cached} · ${free}` : "–");
}

function details(worker) {
  const lines = [
    ["instance", worker.instance ?? "–"],
    ["process", worker.pid === null ? "–" : String(worker.pid)],
  ];
  if (worker.trouble) lines.push(["trouble", worker.trouble]);
  if (worker.pages) {
    lines.push(["page", `${worker.page_tokens} tokens, ${bytes(worker.page_bytes)}`]);
    lines.push(["pool", `${worker.pages.total} pages, ${bytes(worker.pages.total * worker.page_bytes)}`]);
    lines.push(["preemptions", number(worker.preemptions)]);
    lines.push(["pass that runs", worker.step_age_s ? duration(worker.step_age_s) : "none"]);
  }
  return lines;
}
