// The page: asks the server for its state once a second while it is seen, and gives it to the parts.

import { ask, keepKey, readKey } from "./api.js";
import { Chart, History } from "./charts.js";
import { Chat } from "./chat.js";
import { RequestTable } from "./requests.js";
import { TreePicture } from "./tree.js";
import { brief, count, many, percent, put } from "./words.js";

const NODES = 2000;
const PERIOD = 1000;
const PATIENCE = 10_000;
const TREE_AGE = 5000; // how old the tree may be where no step was made

const find = (name) => document.querySelector(`#${name}`);
const key = find("key");
const link = find("link");
const tree = new TreePicture(find("tree"));
const requests = new RequestTable(find("requests"));
const history = new History();
let listed = [];
const chat = new Chat(find("chat"), {
  onDenied: askForKey,
  cachedOf: (id) => listed.find((request) => request.id === id && !request.waits)?.cached_tokens ?? null,
});

const charts = [
  new Chart(find("chart-pool"), {
    series: [
      { name: "c1", read: ({ pages }) => pages.used },
      { name: "c2", read: ({ pages }) => pages.cached },
    ],
    stacked: true,
    top: (samples) => samples.at(-1)?.pages.total ?? 1,
    tell: ({ pages: { used, cached, total } }) => [
      `${percent((used + cached) / total)} of ${many(total, "page")}`,
      count(used),
      count(cached),
    ],
  }),
  new Chart(find("chart-hits"), {
    series: [{ name: "c1", read: ({ hits }) => hits }],
    top: () => 1,
    tell: ({ hits }) => [hits === null ? "no prompts" : percent(hits)],
  }),
  new Chart(find("chart-speed"), {
    series: [
      { name: "c3", read: ({ computed }) => computed },
      { name: "c1", read: ({ generated }) => generated },
    ],
    top: (samples) => 1.08 * Math.max(20, ...samples.map(({ generated, computed }) => Math.max(generated, computed))),
    tell: ({ generated, computed }) => {
      const values = [generated ?? 0, computed ?? 0];
      return [brief(values[0] + values[1]), ...values.map(count)];
    },
  }),
];

// -- asking ----------------------------------------------------------------------------------------

let polling = null;
let treeSteps = -1;
let treeTime = -Infinity;
let treeAsked = false;

function startPolling() {
  polling?.abort();
  polling = null;
  if (document.hidden) return;
  polling = new AbortController();
  void poll(polling.signal);
}

async function poll(signal) {
  let failures = 0;
  while (!signal.aborted) {
    try {
      const reply = await ask("status", { signal: within(signal) });
      showStatus(await reply.json(), signal);
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      showFailure(error);
      if (error.status === 401) return; // until there is a key
    }
    await pause(PERIOD * Math.min(10, 2 ** failures), signal);
  }
}

function showStatus(status, signal) {
  chat.model = status.model;
  const { engine } = status;
  put(find("model"), [status.model, engine.dtype, engine.quantization].filter((word) => word && word !== "none").join(" · "));
  say(status.problem ? "trouble" : "live", status.problem ?? "live");
  listed = status.requests.listed;
  requests.show(status.requests);
  history.add(status);
  put(find("pool-saved"), status.pages.saved ? `${many(status.pages.saved, "page")} saved by sharing` : "");
  put(find("hits-total"), status.tokens.prompt ? `${percent(status.tokens.cached / status.tokens.prompt)} since the start` : "");
  for (const chart of charts) chart.show(history.samples);
  void showTree(status.steps, signal);
}

/** Apart from the rest, since the tree waits for the engine's step. */
async function showTree(steps, signal) {
  const now = performance.now();
  if (treeAsked || (steps === treeSteps && now - treeTime < TREE_AGE)) return;
  treeAsked = true;
  try {
    const reply = await ask(`radix?nodes=${NODES}`, { signal: within(signal) });
    tree.show(await reply.json());
    treeSteps = steps;
    treeTime = now;
  } catch {
    // The status tells what is wrong; the tree stays as it was.
  } finally {
    treeAsked = false;
  }
}

function showFailure(error) {
  if (error.status === 401) {
    say("trouble", "a key is needed");
    askForKey();
  } else {
    say("trouble", error.status ? error.message : "no answer, trying again");
  }
}

function say(state, text) {
  link.dataset.state = state;
  put(link, text);
}

function within(signal) {
  return AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]);
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

// -- the key ---------------------------------------------------------------------------------------

function askForKey() {
  key.open = true;
  find("key-field").focus();
}

find("key-field").value = readKey();
key.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(find("key-field").value.trim());
  key.open = false;
  say("waiting", "connecting");
  startPolling();
});
key.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !key.open) return;
  key.open = false;
  key.querySelector("summary").focus();
});

key.addEventListener("focusout", ({ relatedTarget }) => {
  if (relatedTarget && !key.contains(relatedTarget)) key.open = false;
});
document.addEventListener("pointerdown", ({ target }) => {
  if (!key.contains(target)) key.open = false;
});

document.addEventListener("visibilitychange", startPolling);
startPolling();
