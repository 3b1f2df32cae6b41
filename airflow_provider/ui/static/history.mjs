/** Small charts of a task's latest runs: how long its jobs or batches ran, how long they waited, what they cost. */

import { duration, element, money } from "./dom.mjs";

/** What the runs used: money where there are prices, otherwise the hardware's seconds. */
function used({ history, currency }) {
  if (history.some((run) => run.cost !== null)) return ["Cost", "cost", (cost) => money(cost ?? 0, currency)];
  const unit = history.some((run) => run.chip_seconds) ? "chip" : "core";
  const words = (seconds) => seconds.toLocaleString("en", { maximumFractionDigits: 0 });
  return ["Used", `${unit}_seconds`, (seconds) => `${words(seconds)} ${unit}-seconds`];
}

function column(run, value, most, words, shown) {
  const failed = run.failed ? `, ${run.jobs > 1 ? `${run.failed} of ${run.jobs} ` : ""}failed` : "";
  const names = ["run", run.failed ? "failed" : "", run.run_id === shown ? "shown" : ""];
  const made = element("span", { class: names.join(" ").trim(), title: `${run.run_id}: ${words(value)}${failed}` });
  made.style.height = `${Math.max((100 * value) / most, 2)}%`;
  return made;
}

function chart(history, shown, [title, field, words]) {
  const values = history.map((run) => run[field] ?? 0);
  const most = Math.max(...values);
  if (most <= 0) return null;
  const columns = history.map((run, place) => column(run, values[place], most, words, shown));
  const told = `${title} of the last ${history.length} runs: ${values.map(words).join(", ")}`;
  return element(
    "figure",
    {},
    element("figcaption", {}, `${title} `, element("b", {}, words(values.at(-1)))),
    element("div", { class: "runs", role: "img", "aria-label": told }, ...columns),
  );
}

/** The charts of an answer's runs, the newest at the right; `shown` is the run whose page this is. One run is no history. */
export function charts(answer, shown = "") {
  if (answer.history.length < 2) return null;
  const isMapped = answer.history.some((run) => run.jobs > 1);
  const one = answer.history.some((run) => run.are_batches) ? "batch" : "job";
  const kinds = [
    [isMapped ? `Longest run of a ${one}` : "Ran", "ran", duration],
    [isMapped ? `Longest wait of a ${one}` : "Waited", "waited", duration],
    used(answer),
  ];
  return element("div", { class: "history" }, ...kinds.map((kind) => chart(answer.history, shown, kind)));
}
