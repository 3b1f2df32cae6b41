/** The board of a batch: a square for each input, and all squares of a state one path, so that 10,000 are quick. */

import { element } from "./dom.mjs";

const STATES = {
  s: "succeeded",
  f: "failed",
  r: "running",
  w: "waiting",
  c: "cancelled",
  ".": "not begun",
  "?": "not stored",
};
const CLASSES = { ".": "none", "?": "gone" };
const STEPS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

function drawn(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function number(value) {
  return value.toLocaleString("en");
}

/** Pixels from one square to the next: few inputs get large ones. */
function sideFor(inputs, width) {
  if (inputs <= 400) return 16;
  if (inputs <= 2500) return 10;
  if (width < 500) return 5;
  return width < 900 ? 6 : 7;
}

export class Board {
  /** `choose(index)` is called when somebody chooses an input, `turn(offset)` for other squares of a large batch. */
  constructor(choose, turn) {
    this.choose = choose;
    this.turn = turn;
    this.offset = 0;
    this.squares = "";
    this.place = null;
    this.said = { squares: "", causes: "", counts: "" };
    this.paths = Object.fromEntries(Object.keys(STATES).map((letter) => [letter, drawn("path", { class: `input-${CLASSES[letter] ?? STATES[letter]}` })]));
    this.mark = drawn("rect", { class: "mark", visibility: "hidden" });
    this.drawing = drawn("svg", { class: "squares", tabindex: "0", role: "application" });
    this.drawing.append(...Object.values(this.paths), this.mark);
    this.counts = element("ul", { class: "counts" });
    this.hint = element("p", { class: "hint", role: "status" });
    this.causes = element("section", { class: "causes", "aria-label": "Why inputs failed", hidden: true });
    this.pager = element("nav", { class: "pager", "aria-label": "Squares", hidden: true });
    this.element = element("div", { class: "board", hidden: true }, this.counts, this.causes, this.drawing, this.hint, this.#form(), this.pager);
    this.#listen();
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  /** Show what the server says of a batch. */
  show(batch) {
    this.element.hidden = false;
    this.inputs = batch.inputs;
    this.offset = batch.offset ?? 0;
    this.squares = batch.squares ?? "";
    this.#count(batch.counts ?? {});
    this.#cause(batch.causes ?? []);
    this.#page();
    this.#draw();
  }

  /** Forget the batch that was shown. */
  clear() {
    this.element.hidden = true;
    this.squares = "";
    this.place = null;
    this.mark.setAttribute("visibility", "hidden");
    this.hint.textContent = "";
  }

  #count(counts) {
    const said = JSON.stringify(counts);
    if (said === this.said.counts) return;
    this.said.counts = said;
    const known = Object.entries(STATES).filter(([letter]) => counts[letter]);
    const words = known.map(([letter, state]) => `${number(counts[letter])} ${state}`);
    this.counts.replaceChildren(
      ...known.map(([letter, state], place) => element("li", { class: `count-${CLASSES[letter] ?? state}` }, words[place])),
    );
    this.drawing.setAttribute("aria-label", `${number(this.inputs)} inputs: ${words.join(", ")}. Arrow keys and Enter open one.`);
  }

  /** Why inputs failed: each cause with its first inputs, which open. */
  #cause(causes) {
    const said = JSON.stringify(causes);
    if (said === this.said.causes) return;
    this.said.causes = said;
    this.causes.hidden = causes.length === 0;
    const items = causes.map(({ text, reason, count, inputs }) => {
      const told = reason && reason !== "user error" && !text.startsWith(reason) ? `${reason}: ${text}` : text;
      const buttons = inputs.map((index) => this.#button(String(index), () => this.#open(index)));
      const more = count > inputs.length ? " …" : "";
      return element("li", {}, element("span", { class: "cause-text" }, `${number(count)} × ${told} `), ...buttons, more);
    });
    this.causes.replaceChildren(element("ul", {}, ...items));
  }

  #page() {
    const last = this.offset + this.squares.length;
    this.pager.hidden = this.inputs <= this.squares.length || this.squares.length === 0;
    if (this.pager.hidden) return;
    const size = 10_000;
    const back = this.#button("Back", () => this.turn(Math.max(this.offset - size, 0)));
    const on = this.#button("Next", () => this.turn(this.offset + size));
    back.disabled = this.offset === 0;
    on.disabled = last >= this.inputs;
    this.pager.replaceChildren(back, element("span", {}, `${number(this.offset)} to ${number(last - 1)} of ${number(this.inputs)}`), on);
  }

  /** Draw the squares again if they or their room have changed. */
  #draw() {
    const width = this.element.clientWidth;
    if (!width || !this.squares) return;
    const side = sideFor(this.squares.length, width);
    const fitting = Math.floor(width / side);
    this.columns = fitting > 20 ? fitting - (fitting % 10) : Math.max(fitting, 1);
    this.side = side;
    const said = `${side} ${this.columns} ${this.squares}`;
    if (said === this.said.squares) return;
    this.said.squares = said;
    const lines = Object.fromEntries(Object.keys(STATES).map((letter) => [letter, []]));
    const edge = side - (side > 7 ? 2 : 1);
    for (let place = 0; place < this.squares.length; place += 1) {
      const [x, y] = this.#corner(place);
      (lines[this.squares[place]] ?? lines["?"]).push(`M${x} ${y}h${edge}v${edge}h-${edge}z`);
    }
    for (const [letter, path] of Object.entries(this.paths)) path.setAttribute("d", lines[letter].join(""));
    const size = { width: this.columns * side, height: Math.ceil(this.squares.length / this.columns) * side };
    for (const [name, value] of Object.entries(size)) this.drawing.setAttribute(name, value);
    this.#point(this.place);
  }

  #corner(place) {
    return [(place % this.columns) * this.side, Math.floor(place / this.columns) * this.side];
  }

  /** Mark a square and say which input it is. */
  #point(place) {
    const isThere = place !== null && place >= 0 && place < this.squares.length;
    this.mark.setAttribute("visibility", isThere ? "visible" : "hidden");
    if (!isThere) return;
    this.place = place;
    const [x, y] = this.#corner(place);
    const facts = { x, y, width: this.side - 1, height: this.side - 1 };
    for (const [name, value] of Object.entries(facts)) this.mark.setAttribute(name, value);
    this.hint.textContent = `input ${number(this.offset + place)}: ${STATES[this.squares[place]] ?? "unknown"}`;
  }

  #open(index) {
    this.#point(index - this.offset);
    this.choose(index);
  }

  #button(text, action) {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", action);
    return button;
  }

  #form() {
    const field = element("input", { type: "number", name: "input", min: "0", "aria-label": "Number of an input" });
    const form = element("form", { class: "pick" }, field, element("button", {}, "Open input"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value !== "") this.#open(Number(field.value));
    });
    return form;
  }

  #listen() {
    const placeOf = (event) => {
      const box = this.drawing.getBoundingClientRect();
      const [column, row] = [event.clientX - box.left, event.clientY - box.top].map((each) => Math.floor(each / this.side));
      return column >= 0 && column < this.columns ? row * this.columns + column : null;
    };
    this.drawing.addEventListener("pointermove", (event) => this.#point(placeOf(event)));
    this.drawing.addEventListener("click", (event) => {
      const place = placeOf(event);
      if (place !== null && place < this.squares.length) this.#open(this.offset + place);
    });
    this.drawing.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.place !== null) this.#open(this.offset + this.place);
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      const next = this.place === null ? 0 : this.place + step[0] + step[1] * this.columns;
      if (next >= 0 && next < this.squares.length) this.#point(next);
    });
  }
}
