/** The job that is open: why it is as it is, where its time went, its last lines, what it left. */

import { address, duration, element, size, usage } from "./dom.mjs";
import { badge, nameOf, why } from "./table.mjs";
import { stretches, timeline, total } from "./timeline.mjs";

const ENDED = ["SUCCEEDED", "FAILED", "NOT_FOUND"];

function facts(job) {
  const told = {
    Why: why(job),
    "What to do": job.advice,
    Function: job.function,
    Accelerator: job.accelerator,
    Hosts: job.hosts,
    Attempts: job.attempts,
    Used: usage(job),
    DAG: job.dag_id,
    Run: job.run_id,
    "Task state": `${job.task_state}, try ${job.try_number}`,
    Image: job.image,
    Place: [job.backend, job.namespace].filter(Boolean).join(" / "),
    Started: job.created_at,
    Job: job.job_try && job.job_try !== job.try_number ? `${job.job_id}, of try ${job.job_try}` : job.job_id,
  };
  const lines = Object.entries(told).filter(([, value]) => value !== undefined && value !== "");
  return element(
    "dl",
    {},
    ...lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]),
  );
}

function section(title, content) {
  return content ? element("section", {}, element("h3", {}, title), content) : null;
}

function list(items) {
  return items.length ? element("ul", {}, ...items.map((item) => element("li", {}, item))) : null;
}

/** The jobs of tries before: their lines are in the logs of those tries. */
function earlier(jobs) {
  return list(
    jobs.map((job) => {
      return element("span", {}, `try ${job.try_number}: `, badge(job.status), ` ${why(job)} (${job.job_id})`);
    }),
  );
}

/** Commands for a terminal, each with a button that copies it. */
function commands(job) {
  const verbs = ["logs", "explain", ...(ENDED.includes(job.status) ? [] : ["cancel"])];
  return list(
    verbs.map((verb) => {
      const text = element("code", {}, `kinetic jobs ${verb} ${job.job_id}`);
      const button = element("button", { type: "button", class: "copy" }, "Copy");
      button.addEventListener("click", () => {
        getSelection().selectAllChildren(text);
        // The clipboard's newer interface is forbidden in Airflow's frame.
        button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
      });
      return element("span", { class: "command" }, text, button);
    }),
  );
}

export class Detail {
  /** `closed()` is called when somebody closes it, `cancel(job)` when somebody wants its job ended. */
  constructor(home, closed, cancel) {
    this.home = home;
    this.cancel = cancel;
    this.closed = closed;
    this.id = null;
    this.alone = false;
  }

  /** Open a job, of which the list's row is known; the rest follows with `show`. */
  open(job) {
    this.id = job.job_id;
    this.job = job;
    this.isAsked = false;
    this.home.hidden = false;
    this.show({ ...job, links: [], log: null, outputs: [], troubles: [] });
    if (!this.alone) this.home.focus();
  }

  close() {
    if (this.id === null || this.alone) return;
    this.id = null;
    this.home.hidden = true;
    this.home.replaceChildren();
    this.closed();
  }

  show(job) {
    const atEnd = this.#isAtEnd();
    const button = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    button.addEventListener("click", () => this.close());
    const log = job.log?.length ? element("pre", { class: "log", tabindex: "0" }, job.log.join("\n")) : null;
    const nothing = job.log ? "no line is stored yet" : "loading…";
    const took = total(job.phases ?? []);
    const traceback = job.traceback ? element("pre", { class: "traceback", tabindex: "0" }, job.traceback.trimEnd()) : null;
    const sections = [
      section("Traceback", traceback),
      section("Where its time went", took ? element("div", {}, timeline(job.phases, took), stretches(job.phases)) : null),
      section("Links", list((job.links ?? []).map((link) => address(link.address, link.name)))),
      section("Last lines", log ?? element("p", { class: "hint" }, nothing)),
      section("Earlier tries", earlier(job.earlier ?? [])),
      section("In a terminal", commands(job)),
      section("Outputs", list((job.outputs ?? []).map((file) => `${file.name} (${size(file.size)})`))),
    ];
    const title = element("h2", {}, badge(job.status), ` ${nameOf(job)}${took ? `, ${duration(took)}` : ""}`);
    const troubles = list(job.troubles ?? []);
    troubles?.setAttribute("class", "troubles");
    const [first, ...others] = sections; // what it raised comes before what it was
    const end = job.may_cancel ? this.#end(job) : null;
    this.home.replaceChildren(...[button, title, troubles, first, facts(job), end, ...others].filter(Boolean));
    if (log && atEnd) log.scrollTop = log.scrollHeight;
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
    const log = this.home.querySelector("pre.log");
    return !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  }
}
