/** The job that is open: why it is as it is, where its time went, its last lines, what it left. */

import { address, duration, element, size, usage } from "./dom.mjs";
import { badge, nameOf } from "./table.mjs";
import { stretches, timeline, total } from "./timeline.mjs";

function facts(job) {
  const told = {
    Why: [job.reason, job.message].filter(Boolean).join(": "),
    Function: job.function,
    Accelerator: job.accelerator,
    Hosts: job.hosts,
    Attempts: job.attempts,
    Used: usage(job),
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
      const why = [job.reason, job.message].filter(Boolean).join(": ");
      return element("span", {}, `try ${job.try_number}: `, badge(job.status), ` ${why} (${job.job_id})`);
    }),
  );
}

export class Detail {
  /** `closed()` is called when somebody closes it. */
  constructor(home, closed) {
    this.home = home;
    this.closed = closed;
    this.id = null;
  }

  /** Open a job, of which the list's row is known; the rest follows with `show`. */
  open(job) {
    this.id = job.job_id;
    this.run = job.run_id;
    this.home.hidden = false;
    this.show({ ...job, links: [], log: null, outputs: [], troubles: [] });
    this.home.focus();
  }

  close() {
    if (this.id === null) return;
    this.id = null;
    this.home.hidden = true;
    this.home.replaceChildren();
    this.closed();
  }

  show(job) {
    const atEnd = this.#isAtEnd();
    const button = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    button.addEventListener("click", () => this.close());
    const log = job.log?.length ? element("pre", { tabindex: "0" }, job.log.join("\n")) : null;
    const nothing = job.log ? "no line is stored yet" : "loading…";
    const took = total(job.phases ?? []);
    const sections = [
      section("Where its time went", took ? element("div", {}, timeline(job.phases, took), stretches(job.phases)) : null),
      section("Links", list((job.links ?? []).map((link) => address(link.address, link.name)))),
      section("Last lines", log ?? element("p", { class: "hint" }, nothing)),
      section("Earlier tries", earlier(job.earlier ?? [])),
      section("Outputs", list((job.outputs ?? []).map((file) => `${file.name} (${size(file.size)})`))),
    ];
    const title = element("h2", {}, badge(job.status), ` ${nameOf(job)}${took ? `, ${duration(took)}` : ""}`);
    const troubles = list(job.troubles ?? []);
    troubles?.setAttribute("class", "troubles");
    this.home.replaceChildren(...[button, title, troubles, facts(job), ...sections].filter(Boolean));
    if (log && atEnd) log.scrollTop = log.scrollHeight;
  }

  /** Whether the reader follows the log: then it stays at its end. */
  #isAtEnd() {
    const log = this.home.querySelector("pre");
    return !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  }
}
