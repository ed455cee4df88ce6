// Numbers as people read them: always with their unit, never with more digits than they mean.

const NONE = "–";

/** "0.42", "8.1", "173", "12.4k" */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  return trim(value);
}

function trim(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100) return value.toFixed(0);
  return String(Number(value.toFixed(size >= 10 ? 1 : 2)));
}

/** Seconds as milliseconds, without the unit. */
export const ms = (seconds) => (seconds === null || seconds === undefined ? NONE : number(seconds * 1e3));

/** "173 ms", "2.4 s", "3 min 20 s" */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return `${trim(seconds * 1e3)} ms`;
  if (seconds < 60) return `${trim(seconds)} s`;
  const whole = Math.floor(seconds);
  if (seconds < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (seconds < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** "83 %" */
export const share = (value) => (value === null || value === undefined ? NONE : `${trim(value * 100)} %`);

/** "83 %", without a fraction. */
export const whole = (value) => (value === null || value === undefined ? NONE : `${Math.floor(value * 100)} %`);

/** "1.6 GiB" */
export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value ? Math.min(4, Math.floor(Math.log2(value) / 10)) : 0;
  return `${trim(value / 1024 ** power)} ${units[power]}`;
}

/** "14:03:22", of a Unix time in seconds. */
export const clock = (unix_s) =>
  new Date(unix_s * 1e3).toLocaleTimeString([], { hour12: false });
