/** The page: asks for the jobs of a DAG run or of a task, shows them, asks again while something runs. */

import { Api, subject } from "./api.mjs";
import { Detail } from "./detail.mjs";
import { element, usage } from "./dom.mjs";
import { groups } from "./groups.mjs";
import { charts } from "./history.mjs";
import { isBatch, keyOf, opens, stateWord, Table } from "./table.mjs";
import { followTheme } from "./theme.mjs";
import { legend } from "./timeline.mjs";

const PAGE = 100;
const RUNNING_PAUSE = 3000;
const IDLE_PAUSE = 15000;
const LONGEST_PAUSE = 60000;

class Page {
  constructor(find) {
    this.find = find;
    this.subject = subject(location.search);
    this.api = new Api(this.subject);
    this.offset = 0;
    this.order = "";
    this.failures = 0;
    this.timer = null;
    this.asking = null;
    this.table = new Table(find("#jobs"), (job) => this.#open(job), this.subject);
    this.detail = new Detail(find("#detail"), {
      closed: () => this.#focusOpened(),
      cancel: (job) => this.#cancel(job),
      asked: () => this.refresh(),
    });
    find("#legend").append(...legend());
    if (this.subject.task && !this.subject.run) this.#nameRuns();
    this.#listen();
  }

  /** Rows of one task are told apart by their runs, whose names differ at their ends: they are shown whole. */
  #nameRuns() {
    document.body.classList.add("by-run");
    this.find("thead th").textContent = "Run";
  }

  /** Ask now; whatever was asked before does not matter any more. */
  async refresh() {
    clearTimeout(this.timer);
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    let pause;
    try {
      const answer = await this.#refreshAll(asking.signal);
      this.failures = 0;
      pause = answer.running ? RUNNING_PAUSE : IDLE_PAUSE;
    } catch (error) {
      if (asking.signal.aborted) return;
      this.failures += 1;
      this.#tell([error.message || "The server cannot be reached."]);
      pause = Math.min(RUNNING_PAUSE * 2 ** this.failures, LONGEST_PAUSE);
    }
    if (this.asking === asking) this.timer = setTimeout(() => this.#again(), pause);
  }

  /** The list, and at the same time what is open; what is open is asked for once more if the list has another job of it. */
  async #refreshAll(signal) {
    const asked = this.detail.id && this.detail.job.job_id;
    const opened = asked ? this.#refreshDetail(signal).catch((error) => error) : null;
    const answer = await this.api.jobs(this.#filters(), this.offset, PAGE, signal);
    this.#openOnly(answer);
    this.#show(answer);
    if (!this.detail.id) return answer;
    await this.#follow(answer.jobs, signal);
    if (!asked || this.detail.job.job_id !== asked) await this.#refreshDetail(signal);
    else {
      const error = await opened;
      if (error) throw error;
    }
    return answer;
  }

  #again() {
    if (document.hidden) addEventListener("visibilitychange", () => this.refresh(), { once: true });
    else this.refresh();
  }

  /** The newest row of what is open, also once a filter or the order has moved it out of the list. */
  async #follow(jobs, signal) {
    if (!this.detail.follow(jobs)) this.detail.follow((await this.api.row(this.detail.job, signal)).jobs);
  }

  async #refreshDetail(signal) {
    const { id, job } = this.detail;
    if (!job.job_id) {
      this.detail.show(job);
      return;
    }
    if (isBatch(job)) {
      await Promise.all([this.#refreshBatch(signal), this.#refreshInput(signal)]);
      return;
    }
    const told = await this.api.job(job, signal);
    if (this.detail.id !== id) return;
    await this.#showOpened(told, signal);
  }

  async #showOpened(told, signal) {
    this.detail.show(told);
    if (this.detail.alone) await this.#refreshHistory(told, signal);
  }

  /** The latest runs of the task whose only job or batch is shown; asked for again when its state changes. */
  async #refreshHistory({ status }, signal) {
    if (this.historyAt === status) return;
    const answer = await this.api.history(this.subject, signal);
    this.historyAt = status;
    this.detail.showHistory(charts(answer, this.subject.run));
  }

  async #refreshBatch(signal) {
    const { id, job, offset } = this.detail;
    const told = await this.api.batch(job, offset, signal);
    if (this.detail.id === id && this.detail.offset === offset) await this.#showOpened(told, signal);
  }

  /** The chosen input; who may not read its log still sees the board. */
  async #refreshInput(signal) {
    const { id, job, index } = this.detail;
    if (index === null) return;
    let told;
    try {
      told = await this.api.input(job, index, signal);
    } catch (error) {
      if (signal.aborted) throw error;
      told = { index, troubles: [error.message] };
    }
    if (this.detail.id === id && this.detail.index === index) this.detail.showInput(told);
  }

  async #cancel(job) {
    try {
      await this.api.cancel(job);
    } catch (error) {
      this.#tell([error.message]);
      return;
    }
    this.refresh();
  }

  #filters() {
    const told = Object.fromEntries(new FormData(this.find("#filters")));
    return { ...told, task_id: this.subject.task, map_index: this.subject.map, order: this.order };
  }

  #show(answer) {
    if (this.offset >= answer.total && this.offset > 0) {
      this.offset = 0;
      this.refresh();
      return;
    }
    this.table.show(answer.jobs, answer.currency);
    this.#tell(this.detail.alone ? [] : answer.troubles); // of other jobs; an open one has its own
    this.#summarise(answer);
    this.#offer("status", answer.statuses, stateWord);
    this.#offer("reason", answer.reasons, (reason) => reason);
    const last = Math.min(this.offset + PAGE, answer.total);
    this.find("#pager").hidden = answer.total <= PAGE;
    this.find("#place").textContent = `${this.offset + 1} to ${last} of ${answer.total}`;
    this.find("[name=back]").disabled = this.offset === 0;
    this.find("[name=on]").disabled = last >= answer.total;
  }

  #summarise(answer) {
    const parts = Object.entries(answer.statuses).map(([status, number]) => `${number} ${stateWord(status)}`);
    const used = usage(answer);
    const told = parts.join(", ") + (used ? ` (${used})` : "");
    this.find("#summary").textContent = told || (this.subject.dag ? "No task here runs as a Kinetic job." : "Nothing runs now.");
    if (!this.subject.dag) this.#group(answer);
    if (this.subject.task && !this.subject.run) this.find("#history").replaceChildren(charts(answer) ?? "");
  }

  /** How many jobs each DAG and each accelerator has now, and their cost: a button that searches for them. */
  #group(answer) {
    const home = this.find("#groups");
    home.hidden = answer.total === 0;
    home.replaceChildren(...groups(answer, (name) => {
      this.find("[name=text]").value = name;
      this.#turn(0);
    }));
  }

  /** The choices of a filter, and how many rows each leaves. */
  #offer(name, numbers, word) {
    const choice = this.find(`select[name=${name}]`);
    const said = JSON.stringify(numbers);
    if (choice.dataset.said === said) return; // a list that is open stays open
    choice.dataset.said = said;
    const value = choice.value;
    const names = Object.keys(numbers).sort();
    if (value && !names.includes(value)) names.push(value);
    const options = names.map((each) => element("option", { value: each }, `${word(each)} (${numbers[each] ?? 0})`));
    choice.replaceChildren(element("option", { value: "" }, "any"), ...options);
    choice.value = value;
  }

  #tell(troubles) {
    const home = this.find("#troubles");
    home.hidden = troubles.length === 0;
    home.replaceChildren(...troubles.map((trouble) => element("li", {}, trouble)));
  }

  #open(job) {
    this.opened = keyOf(job);
    this.detail.open(job);
    this.refresh();
  }

  /** The page of one task instance is its job: there is no list to choose from. */
  #openOnly(answer) {
    const [job] = answer.jobs;
    const isOne = Boolean(this.subject.run && this.subject.task) && answer.total === 1 && opens(job);
    if (!isOne || this.detail.id === keyOf(job)) return;
    this.detail.alone = true;
    document.body.classList.add("one");
    this.detail.open(job);
  }

  #focusOpened() {
    this.table.rows.get(this.opened)?.button.focus();
  }

  #listen() {
    const form = this.find("#filters");
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => this.#turn(0));
    this.find("[name=back]").addEventListener("click", () => this.#turn(Math.max(this.offset - PAGE, 0)));
    this.find("[name=on]").addEventListener("click", () => this.#turn(this.offset + PAGE));
    for (const button of document.querySelectorAll("thead button")) button.addEventListener("click", () => this.#sort(button));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.detail.close();
      if (event.key !== "/" || event.target.matches("input, select")) return;
      event.preventDefault();
      this.find("[name=text]").focus();
    });
  }

  /** Sort by a column: the greatest first, then the smallest, then as the rows were. */
  #sort({ name, parentElement }) {
    this.order = { [`-${name}`]: name, [name]: "" }[this.order] ?? `-${name}`;
    for (const column of document.querySelectorAll("thead [aria-sort]")) column.removeAttribute("aria-sort");
    if (this.order) parentElement.setAttribute("aria-sort", this.order === name ? "ascending" : "descending");
    this.#turn(0);
  }

  #turn(offset) {
    this.offset = offset;
    this.refresh();
  }
}

followTheme();
new Page((selector) => document.querySelector(selector)).refresh();
