// Requests as bars over the last seconds, and the newest of them as rows.

import { $, colour, count, el, seconds, svg } from "./dom.js";
import { nameOf, named } from "./names.js";

const WINDOW_S = 30;
const ROWS = 26;
const LEAST_ROWS = 8;
const ROW = 11;
const GRID_S = 5;
const NEWEST = window.matchMedia("(max-width: 640px)").matches ? 4 : 8;

const rowOf = new Map(); // request -> the row of its bar
const freeAt = new Array(ROWS).fill(-Infinity);
let width = 1200; // of the picture, in its own pixels: text stays readable on a phone

// The times of another process are not those of this one.
export function forgetBars() {
  rowOf.clear();
  freeAt.fill(-Infinity);
}

export function drawTimeline(fleet, why) {
  const now = fleet.now;
  const ended = fleet.requests.filter((each) => each.ended > now - WINDOW_S);
  const bars = [...ended, ...fleet.flights.map((each) => ({ ...each, ended: now, status: null }))];
  bars.sort((a, b) => a.arrived - b.arrived);
  width = Math.max(240, $("timeline").clientWidth || 1200);
  const seen = new Set();
  let hidden = 0;
  const drawn = [];
  for (const bar of bars) {
    const row = place(bar, seen);
    if (row == null) hidden += 1;
    else drawn.push(...drawBar(bar, row, now, why));
  }
  for (const request of rowOf.keys()) if (!seen.has(request)) rowOf.delete(request);
  const picture = $("timeline");
  const used = Math.max(LEAST_ROWS, ...[...rowOf.values()].map((row) => row + 1));
  const height = used * ROW + 18;
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("aria-label",
    `${ended.length} requests ended in the last ${WINDOW_S} seconds, ${fleet.flights.length} are under way`);
  const grid = [];
  for (let s = 0; s <= WINDOW_S; s += width < 500 ? 2 * GRID_S : GRID_S) {
    const x = width - (s / WINDOW_S) * width;
    grid.push(svg("line", { class: "axis", x1: x, x2: x, y1: 0, y2: used * ROW }));
    grid.push(svg("text", { class: "quiet", x: Math.min(x + 3, width - 24), y: height - 5 }, s ? `−${s} s` : "now"));
  }
  picture.replaceChildren(...grid, ...drawn);
  const notes = [hidden && `${count(hidden)} more had no row`, fleet.missed && `${count(fleet.missed)} came too fast to be shown`];
  $("timeline-note").textContent = notes.filter(Boolean).join("; ");
}

function place(bar, seen) {
  const key = `${bar.request_id} ${bar.arrived}`;
  seen.add(key);
  let row = rowOf.get(key);
  if (row === undefined) {
    row = freeAt.findIndex((end) => end <= bar.arrived);
    if (row < 0) return null;
    rowOf.set(key, row);
  }
  freeAt[row] = Math.max(freeAt[row], bar.status === null ? Infinity : bar.ended);
  if (bar.status !== null && freeAt[row] === Infinity) freeAt[row] = bar.ended;
  return row;
}

function drawBar(bar, row, now, why) {
  const x = (at) => width - ((now - Math.max(at, now - WINDOW_S)) / WINDOW_S) * width;
  const start = bar.arrived;
  const given = Math.min(bar.ended, start + bar.queue_s);
  const first = bar.ttft_s == null ? bar.ended : Math.min(bar.ended, start + bar.ttft_s);
  const failed = bar.status && bar.status !== "OK" && bar.status !== "CANCELLED";
  const title = `${bar.request_id}: worker ${nameOf(bar.worker)}, ${bar.prompt_tokens} tokens, `
    + `${bar.overlap_blocks} of ${bar.request_blocks} blocks held, first token ${seconds(bar.ttft_s)}, ${bar.status ?? "under way"}`;
  const piece = (from, to, kind) => {
    if (to <= now - WINDOW_S || to <= from) return null;
    const width = Math.max(1.5, x(to) - x(from));
    return svg("rect", { class: `${kind}${failed ? " failed" : ""}`, x: x(from).toFixed(1), y: row * ROW + 1,
      width: width.toFixed(1), height: ROW - 2, rx: 1.5, "data-request": bar.request_id,
      onclick: () => why(bar.request_id, bar.worker) }, svg("title", null, title));
  };
  const hue = colour(bar.worker);
  const parts = [piece(start, given, "queue"), piece(given, first, `${hue} prefill`), piece(first, bar.ended, hue)];
  return parts.filter(Boolean);
}

export function drawRecent(fleet, why) {
  const newest = fleet.requests.slice(-NEWEST).reverse();
  const body = $("recent").tBodies[0];
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.request : null;
  body.replaceChildren(...newest.map((each) => {
    const good = each.status === "OK";
    const number = (name, text) => el("td", { class: "number", "data-name": name }, text);
    return el("tr", null,
      el("th", { scope: "row", title: each.request_id, class: "cut" }, el("bdi", null, each.request_id)),
      el("td", { "data-name": "Worker" }, named(each.worker)),
      number("Prompt tokens", count(each.prompt_tokens)), number("Held blocks", `${count(each.overlap_blocks)} of ${count(each.request_blocks)}`),
      number("Waited", seconds(each.queue_s)), number("First token", seconds(each.ttft_s)), number("In all", seconds(each.ended - each.arrived)),
      el("td", { "data-name": "Status" }, el("span", { class: good ? "good" : each.status === "CANCELLED" ? "warn" : "bad" },
        good ? "ok" : each.status.toLowerCase().replaceAll("_", " ")), each.attempts > 1 ? ` in ${each.attempts} attempts` : null),
      el("td", null, each.has_receipt
        ? el("button", { type: "button", "data-request": each.request_id, onclick: () => why(each.request_id, each.worker) },
          "Why", el("span", { class: "unseen" }, ` did ${each.request_id} go to worker ${nameOf(each.worker)}`))
        : null));
  }));
  if (!newest.length) {
    body.append(el("tr", null, el("td", { colspan: 9, class: "quiet" }, "No request ended in the last minute.")));
  }
  if (focused) body.querySelector(`button[data-request="${CSS.escape(focused)}"]`)?.focus();
}
