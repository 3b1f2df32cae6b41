/** The job or the batch that is open: why it is as it is, where its time went, its last lines, what it left. */

import { Board } from "./board.mjs";
import { address, duration, element, size, usage } from "./dom.mjs";
import { badge, isBatch, keyOf, nameOf, spell, why } from "./table.mjs";
import { stretches, timeline, total } from "./timeline.mjs";

const ENDED = ["SUCCEEDED", "FAILED", "CANCELLED", "NOT_FOUND"];

/** How many tasks wait for the same build, and since when; undefined if that is not known. */
function shared(build) {
  if (!build?.tasks) return undefined;
  return `${build.tasks} task${build.tasks > 1 ? "s" : ""} since ${new Date(1000 * build.since).toISOString().slice(0, 19)}Z`;
}

/** The warm worker on which the job is a call, and what it does now. */
function workerOf({ worker }) {
  if (!worker) return undefined;
  const calls = `${worker.calls} call${worker.calls === 1 ? "" : "s"}`;
  const ends = worker.state === "idle" ? `, ends after ${duration(worker.idle_seconds)} without one` : "";
  return `${worker.job_id}: ${worker.state}, ${calls} so far${ends}`;
}

function facts(job) {
  const told = {
    Why: why(job),
    "What to do": job.advice,
    "Image build": job.build && duration(job.waited),
    "Shared by": shared(job.build),
    Inputs: job.inputs?.toLocaleString("en"),
    Function: job.function,
    Accelerator: job.accelerator,
    Hosts: job.hosts,
    Attempts: job.attempts,
    Used: usage(job),
    Worker: workerOf(job),
    DAG: job.dag_id,
    Run: job.run_id,
    "Task state": `${job.task_state}, try ${job.try_number}`,
    Image: job.image,
    Place: [job.backend, job.namespace].filter(Boolean).join(" / "),
    Started: job.created_at,
    [isBatch(job) ? "Batch" : "Job"]: job.job_try && job.job_try !== job.try_number ? `${job.job_id}, of try ${job.job_try}` : job.job_id,
  };
  const lines = Object.entries(told).filter(([, value]) => value !== undefined && value !== "");
  const shown = (name, value) => (name === "What to do" ? hint(value) : String(value));
  return element(
    "dl",
    {},
    ...lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, shown(name, value))]),
  );
}

/** The worker's phases: `idle` is what it has waited for calls, which costs money as they do. */
function workersTime({ worker }) {
  const took = total(worker?.phases ?? []);
  return took ? element("div", {}, timeline(worker.phases, took), stretches(worker.phases)) : null;
}

function section(title, content) {
  return content ? element("section", {}, element("h3", {}, title), content) : null;
}

function list(items) {
  return items.length ? element("ul", {}, ...items.map((item) => element("li", {}, item))) : null;
}

/** How each attempt before this one ended, and this one: of jobs of tries before, and within the job. */
function attempts(job) {
  const ended = job.earlier ?? [];
  const isOf = ({ try_number, attempt }) => `try ${try_number}${attempt === undefined ? "" : `, attempt ${attempt + 1}`}: `;
  const before = ended.map((each) => element("span", {}, isOf(each), badge(each.status), ` ${why(each)} (${each.job_id})`));
  const own = { try_number: job.job_try, attempt: job.attempts > 1 ? job.attempts - 1 : undefined };
  return list(before.length ? [...before, element("b", {}, isOf(own), badge(job.status), " this one")] : []);
}

/** A text with a button that copies it. */
function copyable(text) {
  const button = element("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(text);
    // The clipboard's newer interface is forbidden in Airflow's frame.
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  });
  return element("span", { class: "command" }, text, button);
}

/** What to do: a command in it, between backticks, is what its button copies, otherwise the whole text. */
function hint(text) {
  const parts = text.split("`");
  if (parts.length < 3) return copyable(element("span", { class: "advice" }, text));
  const pieces = parts.map((part, number) => (number % 2 ? copyable(element("code", {}, part)) : part));
  return element("span", { class: "advice" }, ...pieces);
}

/** Commands for a terminal, each with a button that copies it, and with what a new shell must be told. */
function commands(job) {
  const [noun, verbs] = isBatch(job) ? ["batch", ["status", "results"]] : ["jobs", ["logs", "explain"]];
  if (!ENDED.includes(job.status)) verbs.push("cancel");
  return list(
    verbs.map((verb) => {
      const words = [job.environment, "kinetic", noun, verb, job.job_id];
      return copyable(element("code", {}, words.filter(Boolean).join(" ")));
    }),
  );
}

function pre(name, text) {
  return text ? element("pre", { class: name, tabindex: "0" }, text) : null;
}

/** The last lines, or why there are none; the server says that with the rest. */
function lines({ log, silence }) {
  return pre("log", (log ?? []).join("\n")) ?? element("p", { class: "hint" }, silence ?? "loading…");
}

function troublesOf(told) {
  const troubles = list(told.troubles ?? []);
  troubles?.setAttribute("class", "troubles");
  return troubles;
}

function files(outputs) {
  return list((outputs ?? []).map((file) => `${file.name} (${size(file.size)})`));
}

/** One input of a batch: what became of it. */
function input(told) {
  if (!told.status) return [element("h3", {}, `Input ${told.index}`), troublesOf(told) ?? element("p", { class: "hint" }, "loading…")];
  const attempts = told.attempts ? `, attempt ${told.attempts}` : "";
  return [
    element("h3", {}, `Input ${told.index} `, badge(told.status), attempts),
    troublesOf(told),
    element("p", {}, why(told)),
    told.advice ? element("p", {}, hint(told.advice)) : null,
    section("Traceback", pre("traceback", (told.traceback ?? "").trimEnd())),
    section("Last lines", lines(told)),
    section("Outputs", files(told.outputs)),
    section("In a terminal", commands(told)),
  ].filter(Boolean);
}

export class Detail {
  /** `closed()` is called when somebody closes it, `cancel(job)` when somebody wants its job ended, `asked()`
   * when somebody wants to see another part of a batch. */
  constructor(home, { closed, cancel, asked }) {
    this.home = home;
    this.cancel = cancel;
    this.closed = closed;
    this.asked = asked;
    this.id = null;
    this.alone = false;
    this.board = new Board((index) => this.#choose(index), (offset) => this.#turn(offset));
    this.head = element("div", {});
    this.input = element("section", { class: "input", hidden: true });
    this.history = element("div", {});
    this.body = element("div", {});
    home.append(this.head, this.board.element, this.input, this.history, this.body);
  }

  /** Open a job or a batch, of which the list's row is known; the rest follows with `show`. */
  open(job) {
    this.id = keyOf(job);
    this.job = job;
    this.isAsked = false;
    this.index = null;
    this.offset = 0;
    this.said = "";
    this.home.hidden = false;
    this.input.hidden = true;
    this.board.clear();
    this.show({ ...job, links: [], log: null, outputs: [], troubles: [] });
    if (!this.alone) this.home.focus();
  }

  /**
   * Go on with what the newest rows say: a task whose image is built gets its job, one that is tried again another.
   * Return whether its row is among them.
   */
  follow(jobs) {
    const row = jobs.find((each) => keyOf(each) === this.id);
    this.job = row ?? this.job;
    return Boolean(row);
  }

  close() {
    if (this.id === null || this.alone) return;
    this.id = null;
    this.home.hidden = true;
    this.board.clear();
    this.closed();
  }

  show(job) {
    const atEnd = this.#isAtEnd();
    const button = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    button.addEventListener("click", () => this.close());
    const took = total(job.phases ?? []);
    const phases = [...(job.airflow?.before ?? []), ...(job.phases ?? []), ...(job.airflow?.after ?? [])];
    const title = element("h2", {}, badge(job.status), ` ${[nameOf(job), spell(job)].filter(Boolean).join(", ")}`);
    // What it raised comes before what it was.
    const traceback = section("Traceback", pre("traceback", (job.traceback ?? "").trimEnd()));
    this.head.replaceChildren(...[button, title, troublesOf(job), traceback].filter(Boolean));
    if (isBatch(job)) this.board.show(job);
    else this.board.clear();
    const links = job.build?.page ? [{ name: "Build", address: job.build.page }] : job.links ?? [];
    const log = lines(job);
    const parts = [
      facts(job),
      job.may_cancel ? this.#end(job) : null,
      section("Where its time went", took ? element("div", {}, timeline(phases, total(phases)), stretches(phases)) : null),
      section("Where its worker's time went", workersTime(job)),
      section("Links", list(links.map((link) => address(link.address, link.name)))),
      isBatch(job) || !job.job_id ? null : section("Last lines", log),
      section("Attempts", attempts(job)),
      job.job_id ? section("In a terminal", commands(job)) : null,
      section("Outputs", files(job.outputs)),
    ];
    this.body.replaceChildren(...parts.filter(Boolean));
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  /** Show the charts of the task's latest runs; null for none. */
  showHistory(charts) {
    this.history.replaceChildren(section("Its latest runs", charts) ?? "");
  }

  /** Show what the server says of the input that was chosen. */
  showInput(told) {
    const said = JSON.stringify(told);
    if (this.said === said) return; // a log that somebody reads stays where it is
    this.said = said;
    this.input.hidden = false;
    this.input.replaceChildren(...input(told));
  }

  #choose(index) {
    this.index = index;
    this.showInput({ index });
    this.input.scrollIntoView({ block: "nearest" });
    this.asked();
  }

  #turn(offset) {
    this.offset = offset;
    this.asked();
  }

  /** The button that ends a job, at the second click. */
  #end(job) {
    const words = () => (this.isAsked ? "Really fail the task and cancel its job?" : "Cancel…");
    const button = element("button", { type: "button", class: "end" }, words());
    button.addEventListener("click", () => {
      if (this.isAsked) this.cancel(job);
      this.isAsked = !this.isAsked;
      button.textContent = words();
    });
    return button;
  }

  /** Whether the reader follows the log: then it stays at its end. */
  #isAtEnd() {
    const log = this.body.querySelector("pre.log");
    return !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  }
}
