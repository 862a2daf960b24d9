// The workers: a grid of cells where there are many, and a table in pages.

import { $, count, el, meter } from "./dom.js";
import { drawGrid } from "./grid.js";
import { nameOf, named } from "./names.js";

const GRID_FROM = 41;
const narrow = window.matchMedia("(max-width: 640px)").matches;
const PAGE = narrow ? 8 : 40; // rows
const PAGE_BELOW_GRID = narrow ? 5 : 12;
const GOOD = new Set(["exact", "ready"]);
const WARN = new Set(["trimmed", "recovering", "rebuilding", "approximate", "connecting", "draining", "silent", "spared", "unknown"]);
const tone = (word) => (GOOD.has(word) ? "good" : WARN.has(word) ? "warn" : "bad");
const MEANING = {
  exact: "every event of its source is known",
  trimmed: "exact, but the index had no room for some of it",
  recovering: "a gap; what is missing was asked for",
  rebuilding: "something was missed; the source sends everything again",
  degraded: "something was missed, and the source does not answer",
  approximate: "predicted from routing, or events without numbers",
  silent: "no event has arrived yet",
  unknown: "the worker does not answer: what it has cached now is not known",
};

const COLUMNS = [
  ["Worker", (row) => row.number ?? Infinity],
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

let sorted = { column: null, down: false }; // null: those that need attention first
let page = 0;
let shownColumns = COLUMNS;

export function watchTable(again) {
  $("filter").addEventListener("input", () => {
    page = 0;
    again();
  });
  for (const [id, by] of [["page-before", -1], ["page-after", 1]]) {
    $(id).addEventListener("click", () => {
      page += by;
      again();
    });
  }
}

export function drawWorkers(fleet, change) {
  const again = () => drawWorkers(fleet, change);
  const all = fleet.sortedWorkers;
  // A column that says the same of all workers says nothing.
  const plain = { "Lower tiers": (row) => row.lower_blocks === 0, Weight: (row) => row.weight === 1,
    From: (row) => row.origin === "static" && row.dialect === "trtllm" };
  shownColumns = COLUMNS.filter(([title]) => !plain[title] || !all.every(plain[title]));
  drawHead(again);
  const large = all.length >= GRID_FROM;
  drawGrid(fleet, large ? all : [], (worker) => {
    $("filter").value = $("filter").value === worker ? "" : worker;
    page = 0;
    again();
  });
  const wanted = $("filter").value.toLowerCase();
  const text = (row) => `${row.worker} ${nameOf(row.worker)} ${row.address} ${row.state} ${row.trust} ${row.origin}`.toLowerCase();
  let rows = all.filter((row) => text(row).includes(wanted));
  if (sorted.column !== null) {
    const value = (row) => COLUMNS[sorted.column][1](row);
    const sign = sorted.down ? -1 : 1;
    rows = rows.sort((a, b) => (value(a) === value(b) ? 0 : (value(a) ?? "") < (value(b) ?? "") ? -sign : sign));
  }
  const most = (field) => all.reduce((found, row) => Math.max(found, row[field] ?? 0), 1);
  const mosts = Object.fromEntries(
    ["requests", "prefill_tokens", "active_blocks", "cached_blocks"].map((field) => [field, most(field)]));
  const shown = pageOf(rows, large ? PAGE_BELOW_GRID : PAGE, all.length);
  const body = $("worker-table").tBodies[0];
  // A button that has the focus keeps it.
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.worker : null;
  body.replaceChildren(...shown.map((row) => drawn(row, mosts, fleet.state.may.change && change)));
  if (!shown.length) body.append(el("tr", null, el("td", { colspan: 11, class: "quiet" }, all.length ? "No worker fits the filter." : "There is no worker.")));
  if (focused) body.querySelector(`button[data-worker="${CSS.escape(focused)}"]`)?.focus();
}

function pageOf(rows, size, all) {
  const pages = Math.max(1, Math.ceil(rows.length / size));
  page = Math.min(Math.max(0, page), pages - 1);
  $("pager").hidden = pages < 2;
  $("page-before").disabled = page === 0;
  $("page-after").disabled = page === pages - 1;
  const first = page * size;
  $("page-note").textContent = `${count(first + 1)} to ${count(Math.min(rows.length, first + size))}`;
  $("workers-note").textContent = rows.length === all ? `${count(all)}` : `${count(rows.length)} of ${count(all)}`;
  return rows.slice(first, first + size);
}

function drawHead(again) {
  const head = $("worker-table").tHead;
  const focused = head.contains(document.activeElement) ? document.activeElement.textContent : null;
  const cells = shownColumns.map((shown) => {
    const [title] = shown;
    const column = COLUMNS.indexOf(shown);
    const here = sorted.column === column;
    const press = () => {
      sorted = here && sorted.down ? { column: null, down: false } : { column, down: here };
      again();
    };
    return el("th", { scope: "col", class: column > 2 && column < 9 ? "number" : null,
      "aria-sort": here ? (sorted.down ? "descending" : "ascending") : "none" },
    el("button", { type: "button", onclick: press }, title), here ? (sorted.down ? " ▾" : " ▴") : null);
  });
  head.replaceChildren(el("tr", null, ...cells, el("th", { scope: "col" }, el("span", { class: "unseen" }, "Change"))));
  if (focused) [...head.querySelectorAll("button")].find((each) => each.textContent === focused)?.focus();
}

function drawn(row, most, change) {
  const load = (name, value, bound) => el("td", { class: "number", "data-name": name,
    title: bound > 0 ? `${count(value)}; the bar is full at ${count(bound)}` : null }, count(value), meter(value, bound));
  const state = row.sits_out && row.state === "ready" ? "spared" : row.state;
  const has = (title) => shownColumns.some((each) => each[0] === title);
  const cells = [
    el("th", { scope: "row" }, named(row.worker), " ", el("span", { class: "quiet address", dir: "auto" }, row.address ?? "")),
    el("td", { "data-name": "State", title: row.reason || null }, el("span", { class: `badge ${tone(state)}` }, state),
      row.reason ? el("span", { class: "reason", dir: "auto" }, ` ${row.reason.slice(0, 60)}`) : null),
    el("td", { "data-name": "Event source", title: MEANING[row.trust] ?? null }, el("span", { class: `badge ${tone(row.trust)}` }, row.trust),
      row.source ? ` ${row.source}` : null),
    load("Requests", row.requests, row.most_requests ?? most.requests),
    load("Prefill tokens", row.prefill_tokens, most.prefill_tokens),
    load("Active blocks", row.active_blocks, row.total_blocks ?? most.active_blocks),
    load("Cached blocks", row.cached_blocks, row.total_blocks ?? most.cached_blocks),
    has("Lower tiers") && el("td", { class: "number", "data-name": "Lower tiers" }, count(row.lower_blocks)),
    has("Weight") && el("td", { class: "number", "data-name": "Weight" }, String(row.weight ?? "–")),
    has("From") && el("td", { "data-name": "From" }, [row.origin, row.dialect].filter(Boolean).join(", ")),
  ].filter(Boolean);
  const button = change && row.address
    ? el("button", { type: "button", "data-worker": row.worker, onclick: () => change(row) },
      row.state === "draining" ? "Take back" : "Drain", el("span", { class: "unseen" }, ` worker ${nameOf(row.worker)}`))
    : null;
  return el("tr", { class: row.state === "ready" ? null : tone(row.state) === "bad" ? "out ill" : "out" }, ...cells, el("td", null, button));
}
