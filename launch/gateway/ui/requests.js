// The last requests: a timeline of each, the latest first.

import { $, draw, keyed, labels, make, setText, tips } from "./dom.js";
import { clock, duration, ms, number } from "./format.js";
import { hasEnded, pathOf, pullOf, STAGES, stagesOf } from "./stages.js";

const MOST_ROWS = 60;
const STEPS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];
const HEIGHT = 14;
const LABELS = labels("#requests"); // of numbers: a narrow page shows them in the cells
const body = $("#requests tbody");
const laneHead = $("#requests th.lane");
let mine = new Set(); // ids of this page's own
let spanS = 30; // that the lanes are of
let isAligned = false; // every lane begins with its request's arrival

$("#legend").append(
  ...STAGES.map((stage) => make("li", {}, make("i", { class: `swatch of-${stage}` }), stage)),
  make("li", {}, make("i", { class: "swatch of-transfer pull" }), "pages pulled"),
);
$("#span").addEventListener("change", (event) => {
  isAligned = event.target.value === "arrival";
  if (!isAligned) spanS = Number(event.target.value);
});
tips(body, "tr", (row) => details(row.request));
body.addEventListener("keydown", (event) => {
  const beside = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (!beside) return;
  event.preventDefault();
  event.target.closest("tr")?.[beside]?.focus();
});

/** `id`: of a prompt that this page has sent. */
export const isMine = (id) => mine.add(id);

export function showRequests(requests, now) {
  const shown = requests.slice(0, MOST_ROWS);
  $("#requests .empty").hidden = shown.length > 0;
  const width = laneHead.clientWidth - 12;
  const lasted = shown.map((request) => request.ended_s ?? now - request.arrived_unix_s);
  const scale = { now, width, seconds: isAligned ? Math.max(0.1, ...lasted) : spanS };
  showAxis(scale);
  keyed(body, shown, (request) => request.id, create, (row, request) => update(row, request, scale));
  const focusable = body.querySelector("tr[tabindex='0']") ?? body.firstElementChild;
  focusable?.setAttribute("tabindex", "0");
}

function create(request) {
  const numbers = ["tokens", "ttft", "tpot"].map((name, i) => make("td", { role: "cell", class: `n ${name}`, "data-label": LABELS[i] }));
  const row = make(
    "tr",
    { tabindex: "-1", role: "row", "data-request": request.id },
    make("th", { scope: "row", role: "rowheader", class: "mono" }, short(request.id)),
    make("td", { class: "path", role: "cell" }),
    ...numbers,
    make("td", { class: "end", role: "cell" }),
    make("td", { class: "lane", role: "cell" }, draw("svg", { height: HEIGHT, "aria-hidden": "true" })),
  );
  row.addEventListener("focus", () => {
    body.querySelectorAll("tr[tabindex='0']").forEach((other) => other.setAttribute("tabindex", "-1"));
    row.setAttribute("tabindex", "0");
  });
  return row;
}

function update(row, request, scale) {
  row.request = { ...request, age: scale.now - request.arrived_unix_s };
  row.classList.toggle("mine", mine.has(request.id));
  const ended = hasEnded(request);
  setText(row.querySelector(".path"), pathOf(request));
  setText(row.querySelector(".tokens"), `${request.prompt_tokens} + ${ended ? request.output_tokens : "…"}`);
  setText(row.querySelector(".ttft"), ms(request.first_token_s));
  setText(row.querySelector(".tpot"), ms(request.tpot_s));
  const end = row.querySelector(".end");
  setText(end, request.attempts > 1 ? `${request.state}, attempt ${request.attempts}` : request.state);
  end.classList.toggle("bad", request.state === "failed" || request.state === "refused");
  drawLane(row.querySelector("svg"), row.request, scale);
}

/** Its right end is now; or its left end is the request's arrival. */
function drawLane(svg, request, { now, width, seconds }) {
  svg.setAttribute("width", width);
  const arrived = isAligned ? 0 : seconds - (now - request.arrived_unix_s);
  const x = (after) => (width * (arrived + after)) / seconds;
  const box = (from, to, attributes) => {
    const [left, right] = [Math.max(0, x(from)), Math.min(width, x(to))];
    if (right < 0) return [];
    return [draw("rect", { x: left, width: Math.max(1, right - left), ...attributes })];
  };
  const bars = stagesOf(request, request.age).flatMap(({ stage, from, to }) =>
    box(from, to, { y: 1, height: 8, class: `of-${stage}` }),
  );
  const pull = pullOf(request, request.age);
  if (pull) bars.push(...box(pull.from, pull.to, { y: 10, height: 3, class: "of-transfer" }));
  if (request.state === "failed" || request.state === "refused") {
    bars.push(...box(request.ended_s, request.ended_s + seconds / 300, { y: 0, height: HEIGHT, class: "of-bad" }));
  }
  if (request.ended_s !== null && x(request.ended_s) < 0) {
    const ago = duration(request.age - request.ended_s);
    bars.push(draw("text", { x: 0, y: 10 }, `ended ${ago} ago`));
  }
  svg.replaceChildren(...bars);
}

function showAxis({ width, seconds }) {
  const svg = $("#axis");
  svg.setAttribute("width", width);
  svg.setAttribute("height", 12);
  const step = STEPS_S.find((one) => seconds / one <= Math.max(2, width / 70)) ?? 60;
  const marks = [];
  for (let at = 0; at <= seconds; at += step) {
    const place = isAligned ? at / seconds : 1 - at / seconds;
    const anchor = place < 0.02 ? "start" : place > 0.98 ? "end" : "middle";
    const text = isAligned ? duration(at) : at ? `−${at} s` : "now";
    marks.push(draw("text", { x: width * place, y: 10, "text-anchor": anchor }, text));
  }
  svg.replaceChildren(...marks);
}

/** "cmpl-3f2a9c1d", without what tells it from no other that is shown here. */
const short = (id) => id.replace(/^(\w+)-(\w{8})\w*-(\d+)$/, (_, kind, hex, prompt) => `${kind}-${hex}${prompt === "0" ? "" : `-${prompt}`}`);

function details(request) {
  const lines = [
    ["request", request.id],
    ["arrived", clock(request.arrived_unix_s)],
    ...stagesOf(request, request.age).map(({ stage, from, to, worker }) => [
      stage,
      `${duration(to - from)}${worker ? ` at ${worker}` : ""}`,
    ]),
  ];
  const pull = pullOf(request, request.age);
  if (pull) lines.push(["pages pulled in", duration(pull.to - pull.from)]);
  if (request.decision) lines.push(["prompt computed", `${request.decision}: ${request.reason}`]);
  lines.push(["tokens", `${request.prompt_tokens} + ${request.output_tokens} of ${request.max_tokens}${request.n > 1 ? ` × ${request.n}` : ""}`]);
  if (request.attempts > 1) lines.push(["attempts", number(request.attempts)]);
  if (request.preemptions) lines.push(["preemptions", number(request.preemptions)]);
  if (request.detail) lines.push(["why", request.detail]);
  return lines;
}
