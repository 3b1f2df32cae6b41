/** The rows of the table: made once for a task instance, changed in place, so that focus stays where it is. */

import { duration, element, money, usage } from "./dom.mjs";
import { timeline, total } from "./timeline.mjs";

const WORDS = {
  PENDING: "waiting",
  RUNNING: "running",
  SUCCEEDED: "succeeded",
  FAILED: "failed",
  CANCELLED: "cancelled",
  NOT_FOUND: "not found",
  NO_JOB: "no job yet",
  NEVER: "no job",
  UNKNOWN: "unknown",
};

/** Columns of the table. */
const COLUMNS = 10;

/** What tells a row from all others, whatever job its task instance has. */
export function keyOf(job) {
  return JSON.stringify([job.dag_id, job.run_id, job.task_id, job.map_index]);
}

/** Whether a row has something to open: a job, or the build of its image. */
export function opens(job) {
  return Boolean(job.job_id || job.build);
}

/** A state as people say it. */
export function stateWord(status) {
  return WORDS[status] ?? status;
}

/** A task instance's name, with its try if that is not the first. */
export function nameOf(job) {
  return named(job.task_id, job);
}

function named(whole, job) {
  const index = job.map_index < 0 ? "" : `[${job.map_index}]`;
  const again = job.try_number > 1 ? `, try ${job.try_number}` : "";
  return `${whole}${index}${job.label ? ` ${job.label}` : ""}${again}`;
}

/** What tells a row from the others of its table: the task, of one task its run, and of all DAGs both names. */
function rowName(job, { dag, run }) {
  if (run) return nameOf(job);
  return dag ? named(job.run_id, job) : `${nameOf(job)} of ${job.dag_id}`;
}

/** Why a job is as it is: of a function that failed, what it raised and not that it did. */
export function why(job) {
  return [job.reason === "user error" && job.message ? "" : job.reason, job.message].filter(Boolean).join(": ");
}

/** Whether a row's job is a batch of inputs. */
export function isBatch(job) {
  return job.inputs !== undefined;
}

/** For how long a job waited and ran; "" if that is not known. */
export function spell(job) {
  const known = ["waited", "ran"].filter((name) => job[name]);
  return known.map((name) => `${name} ${duration(job[name])}`).join(", ");
}

/** A state as a coloured word. */
export function badge(status) {
  return element("span", { class: `state state-${status in WORDS ? status : "UNKNOWN"}` }, stateWord(status));
}

/** The cells of a task without a job: why that is so, whole, as all that is beside it would be empty. */
function withoutJob(job) {
  const told = [why(job), spell(job)].filter(Boolean).join(", ");
  return [element("td", { title: told || null }, badge(job.status)), element("td", { class: "why whole", colspan: COLUMNS - 2 }, told)];
}

function cells(job, longest, currency) {
  if (!job.job_id) return withoutJob(job);
  const times = [job.waited, job.ran].map((seconds) => (seconds ? duration(seconds) : ""));
  const isWell = (job.status === "SUCCEEDED" || job.status === "RUNNING") && !isBatch(job);
  return [
    element("td", { title: job.message || null }, badge(job.status)),
    element("td", { class: "why", title: job.message || null }, isWell ? job.reason : why(job)),
    element("td", { class: "spare" }, job.accelerator ?? ""),
    element("td", { class: "number rare" }, String(job.hosts ?? "")),
    element("td", { class: "number rare" }, String(job.attempts ?? "")),
    element("td", { class: "bar" }, timeline(job.phases, longest)),
    element("td", { class: "number rare" }, times[0]),
    element("td", { class: "number time", title: spell(job) || null }, times[1]),
    element("td", { class: "number paid", title: usage(job) || null }, money(job.cost, currency) || "—"),
  ];
}

export class Table {
  /** `open(job)` is called when somebody chooses a row that opens. `subject`: what all rows are of. */
  constructor(body, open, subject) {
    this.body = body;
    this.open = open;
    this.subject = subject;
    this.rows = new Map();
    body.addEventListener("keydown", (event) => this.#move(event));
  }

  show(jobs, currency) {
    const longest = Math.max(...jobs.map((job) => total(job.phases)), 0);
    const kept = new Map();
    for (const job of jobs) {
      const key = keyOf(job);
      const row = this.rows.get(key) ?? this.#made();
      const said = JSON.stringify([job, longest]);
      if (row.said !== said) this.#change(row, job, longest, currency);
      row.said = said;
      kept.set(key, row);
    }
    const wanted = [...kept.values()].map((row) => row.element);
    for (const [key, row] of this.rows) if (!kept.has(key)) row.element.remove();
    wanted.forEach((row, place) => {
      if (this.body.children[place] !== row) this.body.insertBefore(row, this.body.children[place] ?? null);
    });
    this.rows = kept;
  }

  #made() {
    const button = element("button", { type: "button", class: "open" });
    const row = { element: element("tr", {}, element("th", { scope: "row" }, button)), button, job: null, said: "" };
    row.element.addEventListener("click", () => row.job && opens(row.job) && this.open(row.job));
    return row;
  }

  #change(row, job, longest, currency) {
    row.job = job;
    row.button.textContent = rowName(job, this.subject);
    row.button.title = job.run_id;
    row.button.disabled = !opens(job);
    row.element.replaceChildren(row.element.firstElementChild, ...cells(job, longest, currency));
  }

  #move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...this.body.querySelectorAll("button.open:enabled")];
    const next = buttons[buttons.indexOf(document.activeElement) + step];
    if (next) next.focus();
    event.preventDefault();
  }
}
