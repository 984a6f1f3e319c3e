// Small charts of the last minutes: areas that stand on each other, or lines. Drawn as SVG, so that the style
// sheet colours them. A sample without a value leaves a gap.

import { put, seconds } from "./words.js";

const SPAN = 300;
const WIDTH = 300;
const HEIGHT = 72;
const GAP = 6; // seconds without a sample, after which a line does not go on

export class Chart {
  /**
   * `series`: [{name, read}] with read(sample) a number or null; `top`: read(samples) the value at the upper edge;
   * `stacked`: areas; `tell`: (sample) -> what the figure says of it, then what its legend does.
   */
  constructor(figure, { series, top, stacked = false, tell }) {
    Object.assign(this, { series, top, stacked, tell });
    this.said = figure.querySelector("output");
    this.values = figure.querySelectorAll(".legend b");
    this.title = figure.querySelector("h2").textContent;
    this.plot = figure.querySelector(".plot");
    this.svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.paths = series.map(({ name }) => shape("path", { class: `${stacked ? "area" : "line"} ${name}` }));
    this.cursor = shape("line", { class: "cursor", y1: 0, y2: HEIGHT });
    this.cursor.style.display = "none";
    const ground = [1, 2, 3].map((part) => shape("line", { class: "grid", x2: WIDTH, ...level(part / 4) }));
    this.svg.append(...ground, ...this.paths, this.cursor);
    this.plot.append(this.svg);
    this.samples = [];
    this.pointed = null;
    this.plot.addEventListener("pointermove", (event) => this.point(event.offsetX / this.plot.clientWidth));
    this.plot.addEventListener("pointerleave", () => this.point(null));
  }

  show(samples) {
    this.samples = samples;
    const end = samples.at(-1)?.time ?? 0;
    const most = Math.max(this.top(samples), 1e-9);
    let below = samples.map(() => 0);
    this.series.forEach(({ read }, i) => {
      const values = samples.map(read);
      const above = this.stacked ? values.map((value, j) => below[j] + (value ?? 0)) : values;
      const points = samples.map((sample, j) => ({
        time: sample.time,
        x: round(WIDTH - ((end - sample.time) / SPAN) * WIDTH),
        y: values[j] === null ? null : y(above[j] / most),
        base: y(below[j] / most),
      }));
      this.paths[i].setAttribute("d", runsOf(points).map(this.stacked ? areaOf : lineOf).join(""));
      if (this.stacked) below = above;
    });
    this.say();
  }

  point(part) {
    this.pointed = part;
    this.say();
  }

  say() {
    const last = this.samples.at(-1);
    if (!last) return;
    const at = this.pointed === null ? null : last.time - (1 - this.pointed) * SPAN;
    const sample = at === null ? last : nearest(this.samples, at);
    const ago = last.time - sample.time;
    const [text, ...values] = this.tell(sample);
    this.values.forEach((element, i) => put(element, values[i]));
    put(this.said, ago > 0.5 ? `${text}, ${seconds(ago)} ago` : text);
    if (at === null) this.svg.setAttribute("aria-label", `${this.title}: ${text}`);
    this.cursor.style.display = at === null ? "none" : "";
    const x = round(WIDTH - (ago / SPAN) * WIDTH);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
  }
}

/** Samples of the last minutes, with what needs two of them: rates. */
export class History {
  constructor() {
    this.samples = [];
  }

  /** `status`: the reply of /status. */
  add(status) {
    const { time, tokens, pages, steps } = status;
    const last = this.samples.at(-1);
    if (last && (time < last.time || steps < last.steps)) this.samples = []; // another server
    const rates = { generated: null, computed: null, hits: null };
    const near = this.since(time - 3.5);
    const far = this.since(time - 20.5);
    if (near) {
      rates.generated = (tokens.generated - near.tokens.generated) / (time - near.time);
      rates.computed = (tokens.prompt - tokens.cached - near.tokens.prompt + near.tokens.cached) / (time - near.time);
    }
    const asked = far ? tokens.prompt - far.tokens.prompt : 0;
    if (asked > 0) rates.hits = (tokens.cached - far.tokens.cached) / asked;
    this.samples.push({ time, tokens, pages, steps, ...rates });
    this.samples = this.samples.filter((sample) => sample.time >= time - SPAN - GAP);
  }

  /** The oldest sample that is not older. */
  since(time) {
    return this.samples.find((sample) => sample.time >= time);
  }
}

function runsOf(points) {
  const runs = [];
  let run = null;
  for (const point of points) {
    if (point.y === null) {
      run = null;
      continue;
    }
    if (!run || point.time - run.at(-1).time > GAP) runs.push((run = []));
    run.push(point);
  }
  return runs;
}

const lineOf = (run) => `M${run.map(({ x, y }) => `${x} ${y}`).join("L")}${run.length === 1 ? "h.01" : ""}`;

function areaOf(run) {
  const back = [...run].reverse().map(({ x, base }) => `${x} ${base}`);
  return `M${run.map(({ x, y }) => `${x} ${y}`).join("L")}L${back.join("L")}Z`;
}

function nearest(samples, time) {
  return samples.reduce((best, one) => (Math.abs(one.time - time) < Math.abs(best.time - time) ? one : best));
}

const round = (value) => Math.round(value * 100) / 100;
const y = (share) => round(HEIGHT - 1 - Math.min(1, share) * (HEIGHT - 2));
const level = (share) => ({ y1: y(share), y2: y(share) });

function shape(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
