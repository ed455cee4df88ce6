// A request's way through the pools: which stage from when to when, and at which worker.

export const STAGES = ["queue", "prefill", "transfer", "decode"];

const ENDED = new Set(["stop", "length", "aborted", "failed", "refused"]);

export const hasEnded = (request) => ENDED.has(request.state);

/**
 * [{stage, from, to, worker}], seconds after its arrival; `age`: of one that has not ended.
 *
 * One follows the other. Pages are also pulled while the prompt is still computed: see `pullOf`.
 */
export function stagesOf(request, age) {
  const end = request.ended_s ?? Math.max(0, age);
  const began = request.prefill_began_s ?? request.first_token_s ?? end;
  const first = request.first_token_s ?? end;
  const isRemote = request.prefill !== request.decode;
  const decodes = isRemote ? (request.decode_began_s ?? (hasEnded(request) ? first : end)) : first;
  return [
    { stage: "queue", from: 0, to: began, worker: request.prefill },
    { stage: "prefill", from: began, to: first, worker: request.prefill },
    { stage: "transfer", from: first, to: Math.max(first, decodes), worker: request.decode },
    { stage: "decode", from: Math.max(first, decodes), to: end, worker: request.decode },
  ].filter(({ from, to }) => to > from);
}

/** When its pages were pulled; null: not (yet). */
export function pullOf(request, age) {
  if (request.transfer_began_s === null) return null;
  const end = request.transfer_ended_s ?? request.ended_s ?? age;
  return { from: request.transfer_began_s, to: Math.max(end, request.transfer_began_s) };
}

/** "prefill-0 → decode-1" */
export function pathOf(request) {
  const workers = [...new Set([request.prefill, request.decode])].filter((name) => name !== null);
  return workers.join(" → ") || "–";
}
