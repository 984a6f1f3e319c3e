// Requests to the server that this page came from, with the key that is kept for this tab.

const NAME = "radixlm-key";
let kept = "";

export function readKey() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return kept; // storage is forbidden: the key lives as long as the page
  }
}

export function keepKey(key) {
  kept = key;
  try {
    if (key) sessionStorage.setItem(NAME, key);
    else sessionStorage.removeItem(NAME);
  } catch {
    // see readKey
  }
}

/** A reply that is not 2xx. `status` is 0 where none came. */
export class Failure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Raises Failure, and what fetch raises when `signal` ends it. */
export async function ask(path, { signal, body } = {}) {
  const headers = {};
  const key = readKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let reply;
  try {
    reply = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failure("The server does not answer.", 0);
  }
  if (!reply.ok) throw new Failure(await messageOf(reply), reply.status);
  return reply;
}

async function messageOf(reply) {
  try {
    return (await reply.json()).error.message;
  } catch {
    return `The server answered with status ${reply.status}.`;
  }
}

/** The data of each server-sent event of a reply. */
export async function* eventsOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r\n|\n/);
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trimStart();
  }
}
