// The page: asks the router once a second for what is new, and draws it.

import { $, ago, count, el, quantile, seconds, share } from "./dom.js";
import { call, Fleet, useToken } from "./fleet.js";
import { drawCaches } from "./caches.js";
import { drawPools } from "./pools.js";
import { drawReceipt } from "./receipt.js";
import { drawRecent, drawTimeline } from "./timeline.js";
import { drawWorkers } from "./workers.js";

const POLL_MS = 1000;
const CACHES_EVERY = 4; // polls
const fleet = new Fleet();
let polls = 0;
let paused = false;

async function poll() {
  if (!paused && !document.hidden) {
    try {
      const serves = await fleet.read();
      drawPools(fleet, choose);
      if (serves) {
        draw();
        if (polls % CACHES_EVERY === 0 && fleet.told.may.ask) drawCaches(await fleet.ask("caches", {}));
        polls += 1;
      }
      say(fleet.told ? "live" : "no pool serves yet", fleet.told ? "good" : "warn");
    } catch (error) {
      if (error.status === 401 || error.status === 403) $("token-form").hidden = false;
      say(error.status ? error.message : "the router does not answer", "bad");
    }
  }
  setTimeout(poll, POLL_MS);
}

async function choose(pool) {
  fleet.choose(pool);
  polls = 0;
  $("receipt").replaceChildren(el("p", { class: "quiet" }, "Choose a request above, or ask about a prompt below."));
  if (await fleet.read()) draw();
  drawPools(fleet, choose);
}

function say(text, tone) {
  const badge = $("connection");
  if (badge.textContent !== text) badge.textContent = text;
  badge.className = `badge ${tone}`;
}

function draw() {
  const { told } = fleet;
  drawWorkers(fleet, change);
  drawTimeline(fleet, why);
  drawRecent(fleet, why);
  drawTiles();
  drawIncidents();
  $("summary").textContent = `${told.mode}${told.policy === told.mode ? "" : `, policy ${told.policy}`}, blocks of ${told.block_size} tokens`;
  $("what-if").hidden = !told.may.ask;
  document.querySelector('input[value="text"]').disabled = !told.reads_text;
}

function drawTiles() {
  const { told, requests } = fleet;
  const span = Math.max(1, Math.min(60, told.now - Math.min(...requests.map((each) => each.ended), told.now)));
  const first = requests.filter((each) => each.ttft_s != null).map((each) => each.ttft_s);
  const held = requests.reduce((sum, each) => sum + each.overlap_blocks, 0);
  const asked = requests.reduce((sum, each) => sum + each.request_blocks, 0);
  const bounded = requests.filter((each) => each.bound);
  const heldSomewhere = bounded.reduce((sum, each) => sum + each.bound.held_blocks, 0);
  const askedThere = bounded.reduce((sum, each) => sum + each.request_blocks, 0);
  const least = bounded.map((each) => each.bound.ttft_s).filter((each) => each != null);
  const failed = requests.filter((each) => each.status !== "OK" && each.status !== "CANCELLED").length;
  const ready = [...fleet.workers.values()].filter((row) => row.state === "ready").length;
  const exact = [...fleet.workers.values()].filter((row) => row.trust === "exact" || row.trust === "trimmed").length;
  const plane = told.health.event_plane ?? {};
  const tiles = [
    ["Requests", `${(requests.length / span).toFixed(1)} /s`, `${count(told.health.in_flight)} in flight, ${failed} failed`],
    ["Time to first token", seconds(quantile(first, 0.5)), `p95 ${seconds(quantile(first, 0.95))}`,
      least.length ? `an idle engine: ${seconds(quantile(least, 0.5))}` : null,
      "What an engine without other requests takes for the part of the prompt that no worker held, as far as was learnt: the median of the sampled requests."],
    ["Held by the chosen worker", share(asked ? held / asked : null), `${count(held)} of ${count(asked)} prompt blocks`,
      askedThere ? `held by some worker: ${share(heldSomewhere / askedThere)}` : null,
      "Of the sampled requests, the blocks that the worker which held most of them had: as if all caches were one."],
    ["Workers ready", `${count(ready)} of ${count(fleet.workers.size)}`, told.health.draining ? "the router drains" : "taking requests"],
    ["Event sources exact", count(exact), `event plane ${plane.state ?? "unknown"}`],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, value, more, bound, meaning]) => el("div", { title: bound ? meaning : null },
    el("dt", null, name), el("dd", null, value), el("dd", null, more), bound ? el("dd", { class: "bound" }, bound) : null)));
}

const TONES = { worker: "warn", attempt: "warn", request: "bad" };

function drawIncidents() {
  const now = fleet.now;
  const list = $("incident-list");
  const key = fleet.incidents.map((each) => each.number).join();
  if (list.dataset.key === key) {
    for (const time of list.querySelectorAll("time")) time.textContent = ago(now - Number(time.dataset.at));
    return;
  }
  list.dataset.key = key;
  list.replaceChildren(...[...fleet.incidents].reverse().map((each) => el("li", null,
    el("time", { "data-at": each.at }, ago(now - each.at)),
    el("span", { class: `badge ${/→ ready|^ready/.test(each.text) ? "good" : TONES[each.kind]}` }, each.kind),
    el("span", null, each.worker == null ? "" : `worker ${each.worker}: `, each.text, each.count > 1 ? ` (${count(each.count)} times)` : ""))));
  if (!fleet.incidents.length) list.append(el("li", { class: "quiet" }, "Nothing yet."));
}

async function why(requestId, worker) {
  await show(() => fleet.ask("receipt", { request_id: requestId }), worker, `Request ${requestId}`);
  $("why-title").focus({ preventScroll: false });
}

async function show(ask, worker, title) {
  try {
    $("receipt").replaceChildren(...drawReceipt(await ask(), worker, title).filter(Boolean));
  } catch (error) {
    $("receipt").replaceChildren(el("p", { class: "bad" }, error.message));
  }
}

async function change(row) {
  const back = row.state === "draining";
  const verb = back ? "taken back" : "drained";
  if (!back && !window.confirm(`Send worker ${row.worker} no new requests?`)) return;
  try {
    if (back) await call("/workers", { url: `grpc://${row.address}` });
    else await call(`/workers/${row.worker.split("/")[0]}/drain`, {});
    $("change-note").textContent = `Worker ${row.worker} is ${verb}.`;
  } catch (error) {
    $("change-note").textContent = `Worker ${row.worker} was not ${verb}: ${error.message}`;
  }
}

$("what-if").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = $("prompt").value;
  const isText = document.querySelector('input[name="form"]:checked').value === "text";
  const ids = given.split(/[\s,\[\]]+/).filter(Boolean).map(Number);
  if (!isText && !ids.every((id) => Number.isInteger(id) && id >= 0)) {
    $("receipt").replaceChildren(el("p", { class: "bad" }, "Token ids are whole numbers, with spaces or commas between them."));
    return;
  }
  show(() => fleet.ask("what-if", {}, isText ? { text: given } : { token_ids: ids }), null, "What if");
});

$("filter").addEventListener("input", () => fleet.told && drawWorkers(fleet, change));
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value);
  $("token-form").hidden = true;
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (paused) say("paused", "warn");
});

const THEMES = ["system", "light", "dark"];
const system = window.matchMedia("(prefers-color-scheme: dark)");
let theme = localStorage.getItem("theme") ?? "system";

function applyTheme() {
  const dark = theme === "dark" || (theme === "system" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = `Theme: ${theme}`;
}

$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem("theme", theme);
  applyTheme();
});
system.addEventListener("change", applyTheme);
applyTheme();

const still = window.matchMedia("(prefers-reduced-motion: reduce)");
setInterval(() => {
  if (!paused && !document.hidden && !still.matches && fleet.told) drawTimeline(fleet, why);
}, 250);
poll();
