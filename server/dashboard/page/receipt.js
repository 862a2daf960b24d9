// One decision: what each candidate would have cost, and what that is made of.

import { count, el, figure, meter, swatch } from "./dom.js";

const UNITS = { forecast: "seconds", "least-loaded": "requests" };

export function drawReceipt(told, chosen, title) {
  const unit = UNITS[told.policy] ?? (told.policy.startsWith("dynamo") ? "blocks" : "");
  const rows = told.candidates;
  const terms = [...new Set(rows.flatMap((row) => Object.keys(row.policy_terms ?? {})))];
  const winner = chosen ?? told.cheapest[0] ?? null;
  const best = rows.find((row) => row.worker === winner);
  const most = rows.reduce((found, row) => Math.max(found, row.eligible ? row.cost ?? 0 : 0), 0);
  return [
    el("h3", null, title),
    el("p", null, sentence(told, winner, best, chosen != null)),
    el("div", { class: "scroll" }, el("table", null,
      el("caption", { class: "unseen" }, "Candidates, the cheapest first"),
      el("thead", null, el("tr", null, ...["Worker", `Cost${unit ? `, ${unit}` : ""}`, "Held blocks", "Prefill, blocks",
        "Taken off", "Decode, blocks", "Requests", "Dynamo's cost", ...terms.map(words), "Event source", "Not eligible"]
        .map((name, at) => el("th", { scope: "col", class: at && at < 8 + terms.length ? "number" : null }, name)))),
      el("tbody", null, ...rows.map((row) => drawn(row, terms, most, row.worker === winner))))),
    told.candidate_count > rows.length
      ? el("p", { class: "quiet" }, `${count(told.candidate_count - rows.length)} more, which cost more.`) : null,
  ];
}

function sentence(told, winner, best, decided) {
  if (winner == null) return "No worker may take it now.";
  const held = best ? best.overlap_blocks : 0;
  const tie = told.cheapest.length > 1 && told.cheapest.includes(winner) ? ` (${told.cheapest.length} are as cheap)` : "";
  const rank = !best ? "" : told.cheapest.includes(winner) ? `, the cheapest${tie}` : ", not the cheapest: see the temperature, or its attempts";
  return `${count(told.isl)} tokens, ${count(told.request_blocks)} blocks. ${decided ? "It went" : "It would go"} to worker ${winner}${rank}, `
    + `which held ${count(held)} of them; the most that any candidate held: ${count(told.best_overlap_blocks)}. Policy ${told.policy}.`;
}

function drawn(row, terms, most, chosen) {
  const number = (value) => el("td", { class: "number" }, figure(value));
  return el("tr", { class: chosen ? "chosen" : row.eligible ? null : "out" },
    el("th", { scope: "row" }, swatch(row.worker), row.worker, chosen ? " ✓" : null,
      chosen ? el("span", { class: "unseen" }, " chosen") : null),
    el("td", { class: "number" }, figure(row.cost), meter(row.cost ?? most, most)),
    number(row.overlap_blocks + row.host_overlap_blocks + row.disk_overlap_blocks),
    number(row.raw_prefill_blocks), number(row.effective_overlap_blocks), number(row.decode_blocks),
    number(row.active_requests), number(row.dynamo_cost),
    ...terms.map((term) => number(row.policy_terms?.[term] ?? null)),
    el("td", null, row.index_state), el("td", { class: "reason" }, row.eligible ? "" : row.reason));
}

function words(name) {
  return name.replaceAll("_", " ").replace(/ s$/, ", s").replace(/ ms$/, ", ms");
}
