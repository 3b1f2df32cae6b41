/** Where a job's time went: a bar of stretches, each of its cause's colour. */

import { duration, element } from "./dom.mjs";

const CAUSES = [
  "packing",
  "build",
  "upload",
  "capacity",
  "queue",
  "scheduling",
  "scale-up",
  "image",
  "container",
  "hosts",
  "start",
  "dependencies",
  "data",
  "debugger",
  "running",
  "function",
  "calls",
  "idle",
  "result",
  "replacement",
  "termination",
  "unknown",
];

/** What Airflow takes, besides the phases of the job. */
const AIRFLOW = [
  "airflow scheduler",
  "airflow queue",
  "airflow scheduler and queue",
  "airflow retry",
  "airflow worker",
  "airflow resumption",
  "airflow end",
];

/** Seconds of all stretches together. */
export function total(phases) {
  return phases.reduce((sum, phase) => sum + phase.seconds, 0);
}

function words(phase) {
  const attempt = phase.attempt ? ` (attempt ${phase.attempt + 1})` : "";
  const why = phase.why ? `: ${phase.why}` : "";
  return `${phase.name}${attempt} ${duration(phase.seconds)}${why}`;
}

function cause(name) {
  const isKnown = CAUSES.includes(name) || AIRFLOW.includes(name);
  return `cause cause-${isKnown ? name.replaceAll(" ", "-") : "other"}`;
}

/** A bar as long as its share of `longest` seconds. */
export function timeline(phases, longest) {
  const text = phases.map(words).join(", ");
  const bar = element("div", { class: "timeline", role: "img", "aria-label": text || "nothing known" });
  bar.style.width = `${Math.max((100 * total(phases)) / (longest || 1), phases.length ? 4 : 0)}%`;
  for (const phase of phases) {
    const stretch = element("span", { class: cause(phase.name), title: words(phase) });
    stretch.style.flexGrow = String(phase.seconds);
    bar.append(stretch);
  }
  return bar;
}

/** The stretches as a list, for the job that is open. */
export function stretches(phases) {
  const items = phases.map((phase) => element("li", {}, element("span", { class: cause(phase.name) }), words(phase)));
  return element("ul", { class: "stretches" }, ...items);
}

/** What the colours mean. */
export function legend() {
  return CAUSES.map((name) => element("li", {}, element("span", { class: cause(name) }), name));
}
