// What went wrong: faults of workers and requests, and HTTP answers that were errors.

import { $, ago, count, el } from "./dom.js";
import { named } from "./names.js";

const TOGETHER_S = 5;
const TONES = { worker: "warn", attempt: "warn", request: "bad" };

// A worker's change of state, without the reason.
function changeOf(incident) {
  return incident.text.split(": ")[0];
}

function toneOf(incident) {
  if (incident.kind !== "worker") return TONES[incident.kind] ?? "bad";
  const state = changeOf(incident).split(" → ").at(-1);
  return state === "ready" ? "good" : state === "unhealthy" || state === "refused" ? "bad" : "warn";
}

// The same of many workers, one after another, is one line.
function grouped(incidents) {
  const groups = [];
  for (const each of incidents) {
    const before = groups.at(-1)?.[0];
    const same = before?.kind === "worker" && each.kind === "worker"
      && changeOf(before) === changeOf(each) && before.at - each.at < TOGETHER_S;
    if (same) groups.at(-1).push(each);
    else groups.push([each]);
  }
  return groups;
}

export function drawIncidents(fleet) {
  const { now } = fleet;
  const list = $("incident-list");
  const key = `${fleet.state.process} ${fleet.incidents.map((each) => each.number).join()}`;
  if (list.dataset.key === key) {
    for (const time of list.querySelectorAll("time")) time.textContent = ago(now - Number(time.dataset.at));
    return;
  }
  list.dataset.key = key;
  list.replaceChildren(...grouped([...fleet.incidents].reverse()).map(([each, ...more]) => el("li", null,
    el("time", { "data-at": each.at }, ago(now - each.at)),
    el("span", { class: `badge ${toneOf(each)}` }, each.kind),
    el("span", { dir: "auto" }, each.worker == null ? null : named(each.worker, more.length ? ` and ${count(more.length)} more: ` : ": "),
      each.text, each.count > 1 ? ` (${count(each.count)} times)` : "",
      each.request_id ? el("small", { title: "of the last one" }, ` ${each.request_id}`) : null))));
  if (!fleet.incidents.length) list.append(el("li", { class: "quiet" }, "Nothing yet."));
}

export function drawHttpErrors(history) {
  const { overview } = history;
  const errors = overview?.http_errors ?? [];
  const list = $("http-list");
  list.replaceChildren(...errors.map((each) => el("li", null,
    el("time", null, ago(overview.now - each.ended)),
    el("span", { class: `badge ${each.status >= 500 ? "bad" : "warn"}` }, each.status),
    el("span", { dir: "auto" }, el("b", null, each.route || "no route"), each.model ? ` ${each.model}` : "",
      each.error ? `: ${each.error}` : "", each.answers > 1 ? ` (${count(each.answers)} times)` : ""))));
  if (!errors.length) list.append(el("li", { class: "quiet" }, "None since the start."));
}
