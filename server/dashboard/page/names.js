// How workers are named: by model and number; the id stands in the title.

import { el, swatch } from "./dom.js";

const MOST_NAMES = 5000;
const LONGEST = 18;
const known = new Map(); // worker -> its name, also of one that has left

export function shortModel(model) {
  const last = String(model || "worker").split("/").filter(Boolean).at(-1) ?? "worker";
  const letters = [...last];
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : last;
}

export function learnNames(fleet) {
  const model = shortModel(fleet.shown?.model || fleet.state.model);
  for (const row of fleet.workers.values()) {
    if (row.number != null) known.set(row.worker, `${model} ${row.number}`);
  }
  for (const worker of known.keys()) {
    if (known.size <= MOST_NAMES) break;
    if (!fleet.workers.has(worker)) known.delete(worker);
  }
}

// As text: for places that take no elements.
export function nameOf(worker) {
  if (worker == null) return "none";
  return known.get(worker) ?? `…${String(worker).slice(-6)}`;
}

export function named(worker, ...more) {
  if (worker == null) return el("span", null, "–");
  return el("span", { class: "worker", title: `worker ${worker}` }, swatch(worker), el("bdi", null, nameOf(worker)), ...more);
}
