// The last minute in figures, and the server's own facts.

import { $, keyed, make, setText } from "./dom.js";
import { duration, ms, number, whole } from "./format.js";

const STATES = { true: ["ready", "ready"], false: ["short", "not ready"] };

/** `status`: the server's document. */
export function showFigures(status) {
  const { latency, slo, rates, handoff } = status;
  const owed = (seconds) => (seconds === null ? "" : `owed ${ms(seconds)} ms`);
  const of = (one) => `p90 ${ms(one.p90)} · p99 ${ms(one.p99)}`;
  const failed = Object.entries(status.failures).map(([code, n]) => `${n} × ${code}`);
  const figures = [
    ["TTFT p50", ms(latency.ttft_s.p50), "ms", of(latency.ttft_s), owed(slo.ttft_s), late(latency.ttft_s, slo.ttft_s)],
    ["TPOT p50", ms(latency.tpot_s.p50), "ms", of(latency.tpot_s), owed(slo.tpot_s), late(latency.tpot_s, slo.tpot_s)],
    ["ITL p50", ms(latency.itl_s.p50), "ms", of(latency.itl_s)],
    ["Whole request p50", number(latency.e2e_s.p50), "s", `p90 ${number(latency.e2e_s.p90)} · p99 ${number(latency.e2e_s.p99)}`],
    ["Handoff p50", ms(handoff.seconds.p50), "ms", of(handoff.seconds), `${number(handoff.per_s)} /s`],
    ["Output", number(rates.output_tokens_per_s), "tok/s", `prompts ${number(rates.prompt_tokens_per_s)} tok/s`],
    ["Answers", number(rates.answers_per_s), "/s", `${latency.e2e_s.n} ended`, `${status.in_progress} in progress`],
    attainment(slo),
    ["Refused or failed", String(Object.values(status.failures).reduce((a, b) => a + b, 0)), "", failed.join(", ") || "none"],
  ];
  keyed($("#figures"), figures, (figure) => figure[0], create, update);
  showFacts(status);
}

function attainment(slo) {
  if (slo.met === null) {
    const why = slo.ttft_s === null && slo.tpot_s === null ? "no SLO is stated" : "no answer to judge";
    return ["SLO attainment", "–", "", why];
  }
  const parts = [`TTFT ${whole(slo.ttft_met)}`, `TPOT ${whole(slo.tpot_met)} · of ${slo.judged}`];
  return ["SLO attainment", number(slo.met * 100), "%", ...parts, slo.met < 0.9];
}

const late = (percentiles, owed) => owed !== null && percentiles.p90 !== null && percentiles.p90 > owed;

function create([name]) {
  return make(
    "div",
    { class: "figure" },
    make("dt", {}, name),
    make("dd", {}, make("b"), make("span", { class: "unit" }), make("small"), make("small", { class: "owed" })),
  );
}

function update(element, [, value, unit, detail = "", more = "", bad = false]) {
  const [number_, unit_, small, owed] = element.querySelector("dd").children;
  setText(number_, value);
  setText(unit_, unit);
  setText(small, detail);
  setText(owed, more);
  element.classList.toggle("bad", bad);
}

function showFacts(status) {
  const [state, text] = status.draining ? ["short", "draining"] : STATES[status.ready];
  showState(state, text);
  setText($("#model"), status.model);
  const pools = Object.entries(status.pools).filter(([, pool]) => pool.workers);
  const missing = Object.keys(status.gateways_missing);
  const up = pools.map(([role, pool]) => `${pool.up}/${pool.workers} ${role}`);
  if (status.gateways > 1) up.push(`${status.gateways - missing.length}/${status.gateways} gateways`);
  const facts = [...up, `up ${duration(status.uptime_s)}`, `baton ${status.versions.baton}`];
  setText($("#facts"), facts.join("  ·  "));
}

/** `state`: ready, short, gone or waiting. */
export function showState(state, text) {
  $("#state").dataset.state = state;
  setText($("#state"), text);
}
