// Asks the server how it is, once a second while the page is seen, and shows it.

import { $, setText } from "./dom.js";
import { showFigures, showState } from "./figures.js";
import { clock } from "./format.js";
import { showPath } from "./playground.js";
import { showPlots } from "./plots.js";
import { showRequests } from "./requests.js";
import { ask, hasKey, setKey } from "./server.js";
import { showWorkers } from "./workers.js";

const EVERY_MS = 1000;
const MOST_WAIT_MS = 5000;
const KEPT_S = 310;

let points = [];
let lastAt = null; // when the server answered last, Unix seconds of this machine
let waitMs = EVERY_MS;
let timer = null;

async function turn() {
  clearTimeout(timer);
  try {
    const status = await (await ask(`status?after=${points.at(-1)?.unix_s ?? 0}`)).json();
    show(status);
    waitMs = EVERY_MS;
    lastAt = Date.now() / 1e3;
    tell(missing(status));
  } catch (error) {
    if (error.status === 401) return askForKey();
    waitMs = Math.min(2 * waitMs, MOST_WAIT_MS);
    showState("gone", "no answer");
    document.body.classList.add("gone");
    const since = lastAt === null ? "" : ` What is shown is of ${clock(lastAt)}.`;
    const why = error.status ? `The server answers: ${error.message}` : "The server does not answer.";
    tell(`${why}${since} Trying again every ${Math.round(waitMs / 1000)} s.`);
  }
  timer = document.hidden ? null : setTimeout(turn, waitMs);
}

function show(status) {
  document.body.classList.remove("gone");
  const since = status.unix_s - KEPT_S;
  // Later than now: the server's clock was set back.
  points = [...points.filter((point) => point.unix_s <= status.unix_s), ...status.series];
  points = points.filter((point) => point.unix_s >= since);
  showFigures(status);
  showPlots(points, status.slo, status.workers.map((worker) => worker.name));
  showWorkers(status.workers);
  showRequests(status.requests, status.unix_s);
  showPath(status);
}

/** Of gateways that do not tell. */
function missing({ gateways_missing: why }) {
  const names = Object.keys(why);
  if (!names.length) return "";
  const told = names.map((name) => `${name} ${why[name]}`).join("; ");
  return `${told}. What ${names.length > 1 ? "they know" : "it knows"} is in none of the figures.`;
}

function tell(text) {
  $("#banner").hidden = !text;
  setText($("#banner"), text);
}

function askForKey() {
  showState("waiting", "key needed");
  tell(hasKey() ? "That key is none of this server's." : "");
  $("#key").hidden = false;
  $("#key-value").focus();
}

$("#key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("#key-value").value.trim());
  $("#key").hidden = true;
  turn();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && timer === null && $("#key").hidden) turn();
});

turn();
