// The table of workers.

import { $, count, el, meter, swatch } from "./dom.js";

const SHOWN = 100;
const GOOD = new Set(["exact", "ready"]);
const WARN = new Set(["trimmed", "recovering", "rebuilding", "approximate", "connecting", "draining", "silent"]);
const tone = (word) => (GOOD.has(word) ? "good" : WARN.has(word) ? "warn" : "bad");
const MEANING = {
  exact: "every event of its source is known",
  trimmed: "exact, but the index had no room for some of it",
  recovering: "a gap; what is missing was asked for",
  rebuilding: "something was missed; it tells anew",
  degraded: "something was missed, and nobody answers",
  approximate: "predicted from routing, or told without numbers",
  silent: "nothing heard yet",
};

const COLUMNS = [
  ["Worker", (row) => row.worker],
  ["State", (row) => row.state],
  ["Event source", (row) => row.trust],
  ["Requests", (row) => row.requests],
  ["Prefill tokens", (row) => row.prefill_tokens],
  ["Active blocks", (row) => row.active_blocks],
  ["Cached blocks", (row) => row.cached_blocks],
  ["Lower tiers", (row) => row.lower_blocks],
  ["Weight", (row) => row.weight],
  ["From", (row) => row.origin],
];

const OF_POOL = [
  ["Pool", (row, pool) => pool.endpoint],
  ["Card", (row, pool) => pool.card],
];

let columns = COLUMNS;
let sorted = { column: 0, down: false };

export function drawWorkers(fleet, change) {
  columns = fleet.shown ? [...COLUMNS, ...OF_POOL] : COLUMNS;
  drawHead(() => drawWorkers(fleet, change));
  const wanted = $("filter").value.toLowerCase();
  const text = (row) => `${row.worker} ${row.address} ${row.state} ${row.trust} ${row.origin}`.toLowerCase();
  let rows = fleet.sortedWorkers.filter((row) => text(row).includes(wanted));
  if (sorted.column || sorted.down) {
    const value = (row) => columns[sorted.column][1](row, fleet.shown);
    const sign = sorted.down ? -1 : 1;
    const order = (a, b) => (value(a) === value(b) ? 0 : (value(a) ?? "") < (value(b) ?? "") ? -sign : sign);
    if (sorted.column) rows = [...rows].sort(order);
    else rows = [...rows].reverse();
  }
  const all = [...fleet.workers.values()];
  const most = (field) => all.reduce((found, row) => Math.max(found, row[field] ?? 0), 1);
  const mosts = Object.fromEntries(
    ["requests", "prefill_tokens", "active_blocks", "cached_blocks"].map((field) => [field, most(field)]));
  const hidden = rows.length - SHOWN;
  $("workers-note").textContent = hidden > 0
    ? `${SHOWN} of ${count(rows.length)} shown; filter for others` : `${count(rows.length)} of ${count(all.length)}`;
  const body = $("worker-table").tBodies[0];
  // A button that has the focus keeps it.
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.worker : null;
  body.replaceChildren(...rows.slice(0, SHOWN).map((row) => drawn(row, mosts, fleet.told.may.change && change, fleet.shown)));
  if (focused) body.querySelector(`button[data-worker="${CSS.escape(focused)}"]`)?.focus();
}

function drawHead(again) {
  const head = $("worker-table").tHead;
  const focused = head.contains(document.activeElement) ? document.activeElement.textContent : null;
  const cells = columns.map(([title], column) => {
    const here = sorted.column === column;
    const press = () => {
      sorted = { column, down: here && !sorted.down };
      again();
    };
    return el("th", { scope: "col", class: column > 2 && column < 9 ? "number" : null,
      "aria-sort": here ? (sorted.down ? "descending" : "ascending") : "none" },
    el("button", { type: "button", onclick: press }, title), here ? (sorted.down ? " ▾" : " ▴") : null);
  });
  head.replaceChildren(el("tr", null, ...cells, el("th", { scope: "col" }, el("span", { class: "unseen" }, "Change"))));
  if (focused) [...head.querySelectorAll("button")].find((each) => each.textContent === focused)?.focus();
}

function drawn(row, most, change, pool) {
  const load = (value, bound) => el("td", { class: "number" }, count(value), meter(value, bound));
  const state = row.sits_out && row.state === "ready" ? "spared" : row.state;
  const shown = [
    el("th", { scope: "row" }, swatch(row.worker), row.worker, " ", el("span", { class: "quiet" }, row.address ?? "")),
    el("td", { title: row.reason || null }, el("span", { class: `badge ${tone(state)}` }, state),
      row.reason ? ` ${row.reason.slice(0, 60)}` : null),
    el("td", { title: MEANING[row.trust] ?? null }, el("span", { class: `badge ${tone(row.trust)}` }, row.trust),
      row.source ? ` ${row.source}` : null),
    load(row.requests, row.most_requests ?? most.requests),
    load(row.prefill_tokens, most.prefill_tokens),
    load(row.active_blocks, row.total_blocks ?? most.active_blocks),
    load(row.cached_blocks, row.total_blocks ?? most.cached_blocks),
    el("td", { class: "number" }, count(row.lower_blocks)),
    el("td", { class: "number" }, String(row.weight)),
    el("td", null, [row.origin, row.dialect].filter(Boolean).join(", ")),
    ...(pool ? OF_POOL.map(([, value]) => el("td", null, value(row, pool))) : []),
  ];
  const button = change && row.address
    ? el("button", { type: "button", "data-worker": row.worker, onclick: () => change(row) },
      row.state === "draining" ? "Take back" : "Drain", el("span", { class: "unseen" }, ` worker ${row.worker}`))
    : null;
  return el("tr", { class: row.state === "ready" ? null : "out" }, ...shown, el("td", null, button));
}
