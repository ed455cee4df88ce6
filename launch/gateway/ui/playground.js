// A request of one's own: streamed, timed here, and followed through the pools.

import { $, make, setText } from "./dom.js";
import { duration, number } from "./format.js";
import { isMine } from "./requests.js";
import { ask, events } from "./server.js";
import { hasEnded, pathOf, stagesOf } from "./stages.js";

const FIGURES = ["TTFT", "TPOT", "Tokens", "Total"];
const WATCHED_S = 5; // after its end: workers tell of it within a second
let running = null; // the AbortController of the answer that comes
let own = null; // {id, done: when it ended here, ms}

const isChat = () => $("#ask").elements.kind.value === "chat";

$("#own").append(...FIGURES.map((name) => make("div", { class: "figure" }, make("dt", {}, name), make("dd", {}, make("b", {}, "–")))));

$("#ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) send();
});
$("#ask").addEventListener("change", showKind);
$("#ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    $("#ask").requestSubmit();
  }
  if (event.key === "Escape") running?.abort();
});
$("#stop").addEventListener("click", () => running?.abort());

function showKind() {
  $(".chat").hidden = !isChat();
  setText($("#prompt-label"), isChat() ? "Message" : "Prompt");
}

function body() {
  const seed = $("#seed").value;
  const asked = {
    max_tokens: Number($("#max-tokens").value),
    temperature: Number($("#temperature").value),
    ...(seed === "" ? {} : { seed: Number(seed) }),
    stream: true,
    stream_options: { include_usage: true },
  };
  const [system, prompt] = [$("#system").value.trim(), $("#prompt").value];
  if (!isChat()) return { ...asked, prompt };
  const first = system ? [{ role: "system", content: system }] : [];
  return { ...asked, messages: [...first, { role: "user", content: prompt }] };
}

async function send() {
  running = new AbortController();
  setRunning(true);
  const text = $("#text");
  text.replaceChildren();
  $("#path").replaceChildren();
  const timed = { began: performance.now(), first: null, last: null, tokens: 0 };
  showOwn(timed);
  try {
    const response = await ask(isChat() ? "v1/chat/completions" : "v1/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body()),
      signal: running.signal,
    });
    own = { id: `${response.headers.get("x-request-id")}-0`, done: null };
    isMine(own.id);
    for await (const event of events(response.body)) take(event, text, timed);
  } catch (error) {
    const stopped = error.name === "AbortError";
    text.append(make("span", { class: stopped ? "muted" : "bad" }, stopped ? " (stopped)" : ` ${error.message}`));
  }
  timed.last ??= performance.now();
  showOwn(timed);
  if (own) own.done = performance.now();
  running = null;
  setRunning(false);
}

/** One event of the stream. */
function take(event, text, timed) {
  if (event.error) throw new Error(event.error.message);
  const choice = event.choices?.[0];
  if (event.usage) timed.tokens = event.usage.completion_tokens;
  if (!choice) return;
  const piece = choice.delta?.content ?? choice.text ?? "";
  if (!piece) return;
  const now = performance.now();
  timed.first ??= now;
  timed.last = now;
  if (!event.usage) timed.tokens += 1; // about, until the usage tells
  text.append(piece);
  text.scrollTop = text.scrollHeight;
  showOwn(timed);
}

function showOwn({ began, first, last, tokens }) {
  const values = $("#own").querySelectorAll("b");
  const known = first !== null && last !== null;
  setText(values[0], known ? duration((first - began) / 1e3) : "–");
  setText(values[1], known && tokens > 1 ? duration((last - first) / 1e3 / (tokens - 1)) : "–");
  setText(values[2], tokens ? number(tokens) : "–");
  setText(values[3], last === null ? "–" : duration((last - began) / 1e3));
}

function setRunning(runs) {
  $("#send").disabled = runs;
  $("#stop").disabled = !runs;
  $("#text").setAttribute("aria-busy", String(runs));
  if (runs) $("#stop").focus();
  else if (document.activeElement === document.body || document.activeElement === $("#stop")) $("#prompt").focus();
}

/** The path of the answer that this page asked for last, as the server tells it by now. */
export function showPath({ requests, unix_s: now }) {
  if (!own || (own.done !== null && performance.now() - own.done > WATCHED_S * 1e3)) return;
  const request = requests.find((one) => one.id === own.id);
  if (!request) return;
  const stages = stagesOf(request, now - request.arrived_unix_s);
  const total = stages.at(-1)?.to ?? 0;
  const bar = make("div", { class: "pathbar", "aria-hidden": "true" });
  const list = make("ol");
  for (const { stage, from, to, worker } of stages) {
    const part = make("i", { class: `of-${stage}` });
    part.style.flexGrow = String(Math.max((to - from) / total, 0.004));
    bar.append(part);
    const where = worker ? ` at ${worker}` : "";
    list.append(make("li", {}, make("i", { class: `swatch of-${stage}` }), `${stage} `, make("b", {}, duration(to - from)), where));
  }
  const how = request.decision === "local" ? "prompt computed by the decode worker" : pathOf(request);
  const end = hasEnded(request) ? `, ended: ${request.state}` : "";
  $("#path").replaceChildren(make("p", { class: "muted" }, `${how}${end}`), bar, list);
}

showKind();
