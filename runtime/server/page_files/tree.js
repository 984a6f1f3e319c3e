// The tree on a canvas: drawn, moved about in with pointer and keys, explained in a line of text.

import { cellsOf, linked, pathTo } from "./tree_layout.js";
import { brief, count, many, put } from "./words.js";

const MOVE_MS = 260;
const MOST_MOVING = 800; // more cells than that are too narrow for their ways to be seen
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

export class TreePicture {
  constructor(root) {
    this.canvas = root.querySelector("#tree-canvas");
    this.summary = root.querySelector("#tree-summary");
    this.readout = root.querySelector("#tree-readout");
    this.hint = this.readout.textContent.replace(/\s+/g, " ");
    this.empty = root.querySelector("#tree-empty");
    this.out = root.querySelector("#tree-out");
    this.tierLegend = root.querySelector("#legend-tier");
    this.pen = this.canvas.getContext("2d");
    this.tree = linked([], 0);
    this.focusId = this.chosenId = -1;
    this.cells = [];
    this.before = new Map();
    this.movedAt = 0;
    this.colours = this.readColours();
    this.listen();
  }

  /** `view`: the reply of /radix. */
  show(view) {
    this.tree = linked(view.nodes, view.clock);
    const { all, byId } = this.tree;
    if (!byId.has(this.focusId)) this.focusId = -1;
    if (!byId.has(this.chosenId)) this.chosenId = -1;
    this.oldest = all.reduce((most, node) => Math.max(most, node.age), 15);
    this.namespaces = new Set(all.map((node) => node.namespace)).size;
    const tokens = all.reduce((sum, node) => sum + node.tokens, 0);
    const parts = [many(all.length, "node"), many(tokens, "token"), many(view.cached_pages, "page")];
    if (this.namespaces > 1) parts.push(many(this.namespaces, "namespace"));
    if (view.left_out) parts.splice(0, 2, `${count(all.length)} of ${many(all.length + view.left_out, "node")}`);
    put(this.summary, all.length ? parts.join(" · ") : "");
    this.canvas.setAttribute("aria-label", `Radix tree: ${all.length ? parts.join(", ") : "empty"}`);
    this.empty.hidden = all.length > 0;
    this.tierLegend.hidden = !all.some((node) => node.tier !== "device");
    this.arrange();
  }

  get focus() {
    return this.tree.byId.get(this.focusId) ?? this.tree.top;
  }

  get chosen() {
    return this.tree.byId.get(this.chosenId) ?? null;
  }

  // -- pointer and keys ---------------------------------------------------------------------------

  listen() {
    const canvas = this.canvas;
    new ResizeObserver(() => this.arrange({ moves: false })).observe(canvas);
    dark.addEventListener("change", () => {
      this.colours = this.readColours();
      this.draw();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse") this.choose(this.nodeAt(event));
    });
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && document.activeElement !== canvas) this.choose(null);
    });
    canvas.addEventListener("click", (event) => {
      const node = this.nodeAt(event);
      // A finger cannot hover: its first touch tells, the second one looks closer.
      const looks = event.pointerType === "mouse" || node?.id === this.chosenId;
      this.choose(node);
      if (node && looks) this.lookAt(node === this.focus ? node.parent : node);
    });
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("focus", () => {
      if (!this.chosen && canvas.matches(":focus-visible")) this.choose(this.cells[0]?.node ?? null);
    });
    canvas.addEventListener("blur", () => this.choose(null));
    this.out.addEventListener("click", () => {
      this.lookAt(this.tree.top);
      canvas.focus();
    });
  }

  onKey(event) {
    const at = this.chosen ?? this.cells[0]?.node;
    if (!at || event.ctrlKey || event.metaKey || event.altKey) return;
    const beside = at.parent.children;
    const place = beside.indexOf(at);
    const steps = {
      ArrowUp: () => this.choose(at.parent.id < 0 ? at : at.parent),
      ArrowDown: () => this.choose(at.children[0] ?? at),
      ArrowLeft: () => this.choose(beside[Math.max(0, place - 1)]),
      ArrowRight: () => this.choose(beside[Math.min(beside.length - 1, place + 1)]),
      Home: () => this.choose(beside[0]),
      End: () => this.choose(beside.at(-1)),
      Enter: () => this.lookAt(at === this.focus ? at.parent : at),
      Escape: () => this.focus.parent && this.lookAt(this.focus.parent),
    };
    if (!steps[event.key]) return;
    event.preventDefault();
    steps[event.key]();
  }

  nodeAt(event) {
    const x = event.offsetX;
    const y = event.offsetY;
    let found = null;
    for (const cell of this.cells) {
      if (y >= cell.y && y < cell.y + cell.h && x >= cell.x && x < cell.x + Math.max(1, cell.w)) found = cell.node;
    }
    return found;
  }

  choose(node) {
    const id = node?.id ?? -1;
    if (id === this.chosenId) return;
    this.chosenId = id;
    this.tell();
    this.draw();
  }

  lookAt(node) {
    this.focusId = node.id;
    this.arrange();
  }

  tell() {
    const node = this.chosen;
    this.readout.classList.toggle("quiet", !node);
    if (!node) {
      put(this.readout, this.hint);
      return;
    }
    const parts = [
      `${many(node.tokens, "token")} in ${many(node.pages, "page")}, from token ${count(node.start)} on`,
      node.hits ? `found ${node.hits === 1 ? "once" : many(node.hits, "time")}` : "not found again yet",
      node.pins ? `held by ${many(node.pins, "sequence")}` : lastUse(node.age),
    ];
    if (node.children.length) parts.push(`${many(node.children.length, "branch", "branches")} below it`);
    if (node.tier !== "device") parts.push(`on ${node.tier}`);
    if (this.namespaces > 1) parts.push(`namespace ${node.namespace + 1}`);
    put(this.readout, parts.join(" · "));
  }

  // -- drawing ------------------------------------------------------------------------------------

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const ramp = ["--tree-old", "--tree-mid", "--tree-new"].map((name) => rgb(read(name)));
    return { ramp, ink: read("--ink"), pin: read("--pin"), line: read("--card"), mark: read("--accent") };
  }

  arrange({ moves = true } = {}) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      moves = false;
    }
    this.before = new Map(this.placed().map((cell) => [cell.node.id, cell]));
    this.cells = cellsOf(this.tree.top, this.focus, width, height).cells;
    this.out.hidden = this.focus === this.tree.top;
    const few = this.cells.length <= MOST_MOVING;
    const moved = moves && few && !still.matches && this.cells.some((cell) => this.isElsewhere(cell));
    this.movedAt = moved ? performance.now() : -Infinity;
    this.tell();
    this.draw();
  }

  isElsewhere(cell) {
    const old = this.before.get(cell.node.id);
    return !old || Math.abs(old.x - cell.x) + Math.abs(old.w - cell.w) + Math.abs(old.y - cell.y) > 1;
  }

  /** The cells where they are seen now, perhaps on their way. */
  placed() {
    const part = Math.min(1, (performance.now() - this.movedAt) / MOVE_MS);
    if (part >= 1) return this.cells;
    const eased = 1 - (1 - part) ** 3;
    const between = (a, b) => a + (b - a) * eased;
    return this.cells.map((cell) => {
      const old = this.before.get(cell.node.id);
      if (!old) return { ...cell, shown: eased };
      return {
        ...cell,
        x: between(old.x, cell.x),
        y: between(old.y, cell.y),
        w: between(old.w, cell.w),
        h: between(old.h, cell.h),
      };
    });
  }

  draw() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this.paint();
      if (performance.now() - this.movedAt < MOVE_MS) this.draw();
    });
  }

  paint() {
    const { pen, canvas } = this;
    const scale = canvas.width / canvas.clientWidth;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    pen.font = `12px ${getComputedStyle(canvas).fontFamily}`;
    const path = new Set(pathTo(this.chosen));
    let last = null;
    for (const cell of this.placed()) {
      pen.globalAlpha = cell.shown ?? 1;
      this.paintCell(cell);
      if (path.has(cell.node)) this.paintEdge(cell, cell.node === this.chosen ? 2 : 1);
      if (cell.node === this.chosen) last = cell;
    }
    pen.globalAlpha = 1;
    if (last) this.paintEdge(last, 2.5);
  }

  paintCell({ node, x, y, w, h, count: crowd }) {
    const { pen, colours } = this;
    const recent = 1 - Math.log2(1 + node.age) / Math.log2(1 + this.oldest);
    const fill = mix(colours.ramp, recent);
    const gap = w > 4 ? 1 : 0;
    const width = Math.max(w - gap, Math.min(1, Math.max(w, 0.5)));
    pen.fillStyle = css(fill);
    if (w < 8) {
      pen.fillRect(x, y, width, h - 1);
    } else {
      pen.beginPath();
      pen.roundRect(x, y, width, h - 1, 3);
      pen.fill();
    }
    if (node.tier !== "device") this.paintStripes(x, y, width, h - 1);
    if (node.pins) {
      pen.fillStyle = colours.pin;
      pen.fillRect(x, y, width, Math.min(3, h / 3));
    }
    if (crowd > 1 || w < 34 || h < 16) return;
    pen.fillStyle = luminance(fill) > 0.36 ? "#10201f" : "#f4fbfa";
    pen.textBaseline = "top";
    const top = y + Math.min(7, (h - 13) / 2);
    const text = w < 64 ? brief(node.tokens) : count(node.tokens);
    if (pen.measureText(text).width > w - 10) return;
    pen.fillText(text, x + 6, top);
    if (!node.hits) return;
    const hits = `×${brief(node.hits)}`;
    const size = pen.measureText(hits).width;
    if (h >= 36 && size <= w - 10) pen.fillText(hits, x + 6, top + 16);
    else if (pen.measureText(text).width + size + 22 <= w) pen.fillText(hits, x + w - 7 - size, top);
  }

  paintEdge({ x, y, w, h }, width) {
    const { pen, colours } = this;
    pen.strokeStyle = colours.ink;
    pen.lineWidth = width;
    const inset = width / 2;
    pen.strokeRect(x + inset, y + inset, Math.max(1, w - 1 - width), Math.max(1, h - 1 - width));
  }

  paintStripes(x, y, w, h) {
    const { pen, colours } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (let at = x - h; at < x + w; at += 7) {
      pen.moveTo(at, y + h);
      pen.lineTo(at + h, y);
    }
    pen.stroke();
    pen.restore();
  }
}

function lastUse(age) {
  if (age === 0) return "used by the last request";
  return `${many(age, "request")} ended since its last use`;
}

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** A colour between those of the ramp; `part` from 0 to 1. */
function mix(ramp, part) {
  const at = Math.max(0, Math.min(1, part)) * (ramp.length - 1);
  const from = Math.min(Math.floor(at), ramp.length - 2);
  return ramp[from].map((value, i) => Math.round(value + (ramp[from + 1][i] - value) * (at - from)));
}

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

function luminance(colour) {
  const [red, green, blue] = colour.map((value) => (value / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
