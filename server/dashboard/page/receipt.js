// One decision: what each candidate would have cost, and what that is made of.

import { count, el, figure, meter } from "./dom.js";
import { nameOf, named } from "./names.js";

const UNITS = { forecast: "s", "least-loaded": "requests" };
const COLUMNS = {
  Worker: "the candidate; ✓ is the one that was chosen",
  Cost: "what the policy compares: the lowest wins, equal ones are drawn",
  Held: "blocks of this prompt that the worker was known to have, in all tiers",
  Prefill: "blocks to compute there: this prompt and those before it, as if none were cached",
  Credit: "blocks that the held ones take off from Prefill in Dynamo's cost",
  Decode: "blocks in use there, if it got the request",
  Requests: "in flight there",
  "Dynamo's cost": "of the same candidate by the cost function of NVIDIA Dynamo, in blocks",
  Events: "how far Held can be trusted: the state of the worker's event source",
};
const TERMS = {
  wait_s: "engine steps that work off the prompts sent there before",
  unsure_s: "time since the running step began, where its start is only foreseen",
  prefill_s: "further steps that the uncached tokens of this prompt need",
  memory_s: "time until there is room for the prompt's blocks",
  work_s: "engine time of the uncached tokens, which later requests pay for",
  delay_s: "what this prompt adds to the prompts ahead of it in the same step",
  crowding_s: "how much longer later requests wait for room",
  decode_s: "how much this request and those that decode there slow each other down",
  missed: "how many more answers will miss their objective of ITL",
  usual_s: "the fleet's mean TTFT of late",
  onboard_s: "time to load blocks from host memory or disk",
  unheard_s: "a charge for a worker whose events do not arrive",
};

export function drawReceipt(given, chosen, title) {
  const unit = UNITS[given.policy] ?? (given.policy.startsWith("dynamo") ? "blocks" : "");
  const rows = given.candidates;
  const dynamo = given.policy.startsWith("dynamo");
  // A term that is 0 for all of them says nothing.
  const terms = [...new Set(rows.flatMap((row) => Object.keys(row.policy_terms ?? {})))]
    .filter((term) => term !== "cost" && rows.some((row) => row.policy_terms?.[term]));
  const winner = chosen ?? given.cheapest[0] ?? null;
  const best = rows.find((row) => row.worker === winner);
  const most = rows.reduce((found, row) => Math.max(found, row.eligible ? row.cost ?? 0 : 0), 0);
  const columns = [
    ["Held", (row) => row.overlap_blocks + row.host_overlap_blocks + row.disk_overlap_blocks],
    ["Prefill", (row) => row.raw_prefill_blocks],
    ...(dynamo ? [["Credit", (row) => row.effective_overlap_blocks]] : []),
    ["Decode", (row) => row.decode_blocks],
    ["Requests", (row) => row.active_requests],
    ...terms.map((term) => [words(term), (row) => row.policy_terms?.[term] ?? null, TERMS[term]]),
    ...(dynamo ? [] : [["Dynamo's cost", (row) => row.dynamo_cost]]),
  ];
  const head = [["Worker"], [unit ? `Cost, ${unit}` : "Cost", null, COLUMNS.Cost], ...columns, ["Events"]];
  const meaning = ([name, , means]) => means ?? COLUMNS[name];
  return [
    el("h3", { dir: "auto", class: "cut", title }, title),
    el("p", null, sentence(given, winner, best, chosen != null)),
    el("div", { class: "scroll" }, el("table", { class: "cards narrow" },
      el("caption", { class: "unseen" }, "Candidates, the cheapest first"),
      el("thead", null, el("tr", null, ...head.map((column, at) =>
        el("th", { scope: "col", title: meaning(column), class: at && at < head.length - 1 ? "number" : null }, column[0])))),
      el("tbody", null, ...rows.map((row) => drawn(row, columns, most, row.worker === winner))))),
    given.candidate_count > rows.length
      ? el("p", { class: "quiet" }, `${count(given.candidate_count - rows.length)} more, which cost more.`) : null,
    el("details", null, el("summary", null, "What the columns mean"),
      el("dl", { class: "meanings" }, ...head.filter(meaning).flatMap((column) => [el("dt", null, column[0]), el("dd", null, meaning(column))]))),
  ];
}

function sentence(given, winner, best, decided) {
  if (winner == null) return "No worker may take it now.";
  const held = best ? best.overlap_blocks : 0;
  const tie = given.cheapest.length > 1 && given.cheapest.includes(winner) ? ` (${given.cheapest.length} are as cheap)` : "";
  const rank = !best ? "" : given.cheapest.includes(winner) ? `, the cheapest${tie}` : ", not the cheapest: see the temperature, or its attempts";
  return `${count(given.isl)} tokens, ${count(given.request_blocks)} blocks. ${decided ? "It went" : "It would go"} to worker ${nameOf(winner)}${rank}, `
    + `which held ${count(held)} of them; the most that any candidate held: ${count(given.best_overlap_blocks)}. Policy ${given.policy}.`;
}

function drawn(row, columns, most, chosen) {
  const number = (name, value) => el("td", { class: "number", "data-name": name }, figure(value));
  return el("tr", { class: chosen ? "chosen" : row.eligible ? null : "out" },
    el("th", { scope: "row" }, named(row.worker, chosen ? " ✓" : null,
      chosen ? el("span", { class: "unseen" }, " chosen") : null)),
    el("td", { class: "number", "data-name": "Cost" }, figure(row.cost), meter(row.cost ?? most, most)),
    ...columns.map(([name, value]) => number(name, value(row))),
    el("td", { "data-name": "Events" }, row.index_state, row.eligible ? null : el("span", { class: "warn" }, ` not eligible: ${row.reason}`)));
}

function words(name) {
  return name.replaceAll("_", " ").replace(/ s$/, ", s").replace(/ ms$/, ", ms");
}
