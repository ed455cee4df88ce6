// What is asked of the server, and with which key.

const KEY = "baton-api-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => sessionStorage.setItem(KEY, key);

/** A response that is well, of a path beside this page's folder. Raises Refused, or a TypeError. */
export async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(`../${path}`, { ...options, headers, cache: "no-store" });
  if (!response.ok) throw new Refused(response.status, await reason(response));
  return response;
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `HTTP ${response.status}`;
  }
}

/** The data of each server-sent event of a body, until `[DONE]`. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: ?/, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
