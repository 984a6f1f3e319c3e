// The chat: one conversation, streamed, with what each answer took from the cache and how soon it began.

import { ask, eventsOf } from "./api.js";
import { count, many, percent, put, seconds } from "./words.js";

export class Chat {
  /** `onDenied`: called where the server asks for a key; `cachedOf`: (id) -> cached tokens of a running request. */
  constructor(root, { onDenied, cachedOf }) {
    const find = (name) => root.querySelector(`#chat-${name}`);
    Object.assign(this, { onDenied, cachedOf });
    this.log = find("log");
    this.start = find("start");
    this.status = find("status");
    this.form = find("form");
    this.text = find("text");
    this.send = find("send");
    this.stop = find("stop");
    this.system = find("system");
    this.temperature = find("temperature");
    this.most = find("tokens");
    this.said = []; // {role, content}: what the model is sent again with each message
    this.running = null;
    this.model = "";
    this.listen(find("new"));
  }

  listen(fresh) {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.ask(this.text.value);
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      void this.ask(this.text.value);
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.abort();
    });
    this.stop.addEventListener("click", () => this.running?.abort());
    fresh.addEventListener("click", () => this.clear());
    for (const button of this.start.querySelectorAll("button")) {
      button.addEventListener("click", () => void this.ask(button.textContent));
    }
  }

  clear() {
    this.running?.abort();
    this.said = [];
    this.log.replaceChildren(this.start);
    put(this.status, "");
    this.text.focus();
  }

  async ask(text) {
    if (this.running || !text.trim()) return;
    const said = this.said;
    this.start.remove();
    const question = turn(this.log, "user", text);
    const answer = turn(this.log, "assistant", "");
    said.push({ role: "user", content: text });
    this.text.value = "";
    this.begin();
    const figures = { sent: performance.now(), first: null, usage: null, id: "", finish: "" };
    let failure = null;
    try {
      await this.read(answer, figures, said);
    } catch (error) {
      failure = this.running.signal.aborted ? null : error;
    }
    this.end(answer, figures, failure);
    const found = answer.body.textContent;
    if (found) said.push({ role: "assistant", content: found });
    else if (failure) this.takeBack(said, question, text);
    else said.pop();
    if (failure?.status === 401) this.onDenied();
  }

  begin() {
    this.running = new AbortController();
    this.log.setAttribute("aria-busy", "true");
    put(this.status, "");
    this.send.hidden = true;
    this.stop.hidden = false;
  }

  async read(answer, figures, said) {
    const system = this.system.value.trim();
    const body = {
      model: this.model,
      messages: system ? [{ role: "system", content: system }, ...said] : said,
      temperature: numberOf(this.temperature),
      max_tokens: numberOf(this.most),
      stream: true,
      stream_options: { include_usage: true },
    };
    const reply = await ask("v1/chat/completions", { body, signal: this.running.signal });
    for await (const data of eventsOf(reply)) {
      if (data === "[DONE]") return;
      this.take(JSON.parse(data), answer, figures);
    }
    if (!figures.finish) throw new Error("The answer broke off.");
  }

  take(event, answer, figures) {
    if (event.error) throw new Error(event.error.message);
    figures.id = event.id ?? figures.id;
    figures.usage = event.usage ?? figures.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    figures.finish = choice.finish_reason ?? figures.finish;
    const thought = choice.delta?.reasoning_content ?? "";
    const text = choice.delta?.content ?? "";
    if (!thought && !text) return;
    figures.first ??= performance.now();
    figures.known ??= this.cachedOf(figures.id);
    const follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    if (thought) answer.thought.append(thought);
    if (text) answer.body.append(text);
    if (follows) this.log.scrollTop = this.log.scrollHeight;
  }

  end(answer, figures, failure) {
    const stopped = this.running.signal.aborted;
    const known = this.cachedOf(figures.id);
    this.running = null;
    this.log.removeAttribute("aria-busy");
    const hadFocus = document.activeElement === this.stop;
    this.stop.hidden = true;
    this.send.hidden = false;
    if (hadFocus) this.text.focus();
    answer.item.classList.remove("open");
    if (failure) {
      const note = answer.item.appendChild(document.createElement("p"));
      note.className = "failure";
      note.textContent = failure.message;
    }
    const words = wordsOf(figures, stopped, known);
    if (words.length) {
      if (figures.usage) answer.item.append(shareBar(figures.usage));
      const line = answer.item.appendChild(document.createElement("p"));
      line.className = "figures";
      line.append(...words.map((word) => Object.assign(document.createElement("span"), { textContent: word })));
    }
    put(this.status, failure ? failure.message : ["Answer complete", ...words].join(", "));
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** A question that got no answer goes back to where it was written. */
  takeBack(said, question, text) {
    said.pop();
    question.item.classList.add("failed");
    if (!this.text.value) this.text.value = text;
  }
}

function turn(log, role, text) {
  const item = log.appendChild(document.createElement("article"));
  item.className = role === "user" ? "user" : "assistant open";
  const name = item.appendChild(document.createElement("h3"));
  name.textContent = role === "user" ? "You" : "Model";
  const thought = item.appendChild(document.createElement("p"));
  thought.className = "thought";
  const body = item.appendChild(document.createElement("p"));
  body.className = "text";
  body.textContent = text;
  log.scrollTop = log.scrollHeight;
  return { item, thought, body };
}

function wordsOf({ sent, first, usage, finish }, stopped, known) {
  const words = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const share = usage.prompt_tokens ? ` (${percent(cached / usage.prompt_tokens)})` : "";
    words.push(`${count(cached)} of ${many(usage.prompt_tokens, "prompt token")} cached${share}`);
  } else if (known !== null && first !== null) {
    words.push(`${many(known, "prompt token")} cached`);
  }
  if (first !== null) words.push(`first token after ${seconds((first - sent) / 1000)}`);
  const took = first === null ? 0 : (performance.now() - first) / 1000;
  if (usage && usage.completion_tokens > 1 && took > 0.05) {
    const speed = (usage.completion_tokens - 1) / took;
    words.push(`${many(usage.completion_tokens, "token")}, ${speed < 10 ? speed.toFixed(1) : count(speed)} a second`);
  } else if (usage) {
    words.push(many(usage.completion_tokens, "token"));
  }
  if (stopped) words.push("stopped");
  else if (finish === "length") words.push("ended at the most tokens");
  return words;
}

function shareBar({ prompt_tokens: asked, prompt_tokens_details: details }) {
  const bar = document.createElement("div");
  bar.className = "share";
  const part = bar.appendChild(document.createElement("div"));
  part.style.width = `${asked ? (100 * (details?.cached_tokens ?? 0)) / asked : 0}%`;
  return bar;
}

/** What a field holds; null, the server's own default, where it holds nothing. */
function numberOf(field) {
  return field.value === "" ? null : Number(field.value);
}
