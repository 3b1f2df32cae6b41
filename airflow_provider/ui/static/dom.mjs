/** Elements made of text, never of markup: what users name and print is only ever shown. */

/** An element with attributes and children; strings become text nodes, null and undefined nothing. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A link for a web address, text for any other: a job chooses where its outputs go. */
export function address(text, label) {
  if (!/^https?:\/\//.test(text)) return element("span", { class: "path" }, `${label}: ${text}`);
  return element("a", { href: text, target: "_blank", rel: "noopener noreferrer" }, label);
}

/** Seconds as people say them. */
export function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** An amount of money; "" where there is no price. */
export function money(cost, currency) {
  return cost === null || cost === undefined ? "" : `${cost.toFixed(2)} ${currency ?? ""}`.trimEnd();
}

/** What hardware was used, chips and cores apart, and what it cost where there is a price for it. */
export function usage(told) {
  const units = ["chip", "core"].filter((unit) => told[`${unit}_seconds`]);
  if (units.length === 0) return "";
  const text = (unit) => told[`${unit}_seconds`].toLocaleString("en", { maximumFractionDigits: 0 });
  const held = units.map((unit) => `${text(unit)} ${unit}-seconds`).join(" and ");
  return [held, money(told.cost, told.currency)].filter(Boolean).join(", ");
}

/** Bytes as people say them. */
export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = bytes < 1 ? 0 : Math.min(Math.floor(Math.log10(bytes) / 3), units.length - 1);
  return `${(bytes / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}
