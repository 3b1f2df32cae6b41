/** What runs now, in groups: each a button with the number of its jobs and their cost. */

import { element, money } from "./dom.mjs";

const TITLES = { dag_id: "By DAG", team: "By team", accelerator: "By accelerator" };

/** A line for each field; `choose(name)` is called when somebody chooses a group. */
export function groups(answer, choose) {
  return Object.entries(answer.groups).map(([field, found]) => {
    const buttons = found.map(({ name, jobs, cost }) => {
      const told = [`${name || "cpu"}: ${jobs}`, money(cost, answer.currency)].filter(Boolean);
      const button = element("button", { type: "button" }, told.join(", "));
      button.addEventListener("click", () => choose(name));
      return button;
    });
    return element("p", {}, element("span", { class: "title" }, TITLES[field] ?? field), ...buttons);
  });
}
