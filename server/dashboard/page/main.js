// The page: asks the router once a second for what is new, and draws it.

import { $, ago, count, el, quantile, seconds, share } from "./dom.js";
import { drawCaches } from "./caches.js";
import { drawHttpErrors, drawIncidents } from "./faults.js";
import { ApiError, call, Fleet, useToken } from "./fleet.js";
import { drawTiles, followPointer, History } from "./history.js";
import { learnNames, nameOf } from "./names.js";
import { drawPlan } from "./plan.js";
import { drawPools } from "./pools.js";
import { drawReceipt } from "./receipt.js";
import { drawRecent, drawTimeline, forgetBars } from "./timeline.js";
import { drawVerdict, judge } from "./verdict.js";
import { drawWorkers, watchTable } from "./workers.js";

const POLL_MS = 1000;
const CACHES_EVERY = 4; // polls
const PLAN_EVERY = 3;
const fleet = new Fleet();
const history = new History();
const connection = { lostAt: null, error: "" };
let polls = 0;
let looks = 0; // also while no pool serves
let paused = false;
let shownProcess = "";

async function poll() {
  if (!paused && !document.hidden) {
    try {
      const [serves] = await Promise.all([fleet.read(), readOverview()]);
      if (fleet.process !== shownProcess) {
        if (shownProcess) {
          history.forget(); // its clock may be that of another machine
          await readOverview();
        }
        shownProcess = fleet.process;
        forgetBars();
      }
      drawHttpErrors(history);
      drawScopes();
      drawPools(fleet, choose);
      if (looks % PLAN_EVERY === 0) drawPlan(await call("/dashboard/plan").catch(() => ({ status: null, decisions: [] })));
      looks += 1;
      if (serves) {
        draw();
        if (polls === 0) performance.mark("drawn");
        if (polls % CACHES_EVERY === 0 && fleet.state.may.ask) drawCaches(await fleet.ask("caches", {}));
        polls += 1;
      }
      connection.lostAt = null;
      $("token-form").hidden = true;
      say(fleet.state ? "live" : "no pool serves yet", fleet.state ? "good" : "warn");
    } catch (error) {
      const asksWho = error.status === 401 || error.status === 403;
      if (asksWho) $("token-form").hidden = false;
      if (error instanceof ApiError) {
        connection.lostAt ??= Date.now();
        connection.error = error.message;
        say(asksWho ? "needs a token" : "no answer", "bad");
      } else console.error(error); // of this page, not of the router
    }
    document.body.classList.toggle("stale", connection.lostAt !== null);
    drawVerdict(judge(fleet, history, connection));
  }
  setTimeout(poll, POLL_MS);
}

// What a step of the history has is known once it has ended.
async function readOverview() {
  const { overview, layout, model } = history;
  if (overview !== null && fleet.state !== null && Math.floor(fleet.now / layout.step_s) - 1 <= history.newest) return;
  const since = overview === null ? "" : history.newest;
  history.take(await call(`/dashboard/overview?${new URLSearchParams({ model, since })}`), model);
}

function drawScopes() {
  const { models, version, uptime_s: uptime, processes, missing } = history.overview;
  $("about").textContent = `${version}, up ${ago(uptime, "")}${processes > 1 ? `, ${count(processes - missing)} of ${count(processes)} processes` : ""}`;
  $("scope-label").hidden = models.length < 2;
  const scope = $("scope");
  const wanted = ["", ...models];
  if (scope.dataset.key !== wanted.join("\n")) {
    scope.dataset.key = wanted.join("\n");
    scope.replaceChildren(...wanted.map((each) => el("option", { value: each }, each || "all models")));
  }
  scope.value = history.model;
}

async function choose(pool) {
  fleet.choose(pool);
  history.choose(fleet.pools.find((each) => each.key === pool)?.model ?? "");
  polls = 0;
  $("receipt").replaceChildren(el("p", { class: "quiet" }, "Choose a request above, or ask about a prompt below."));
  const [serves] = await Promise.all([fleet.read(), readOverview()]);
  drawScopes();
  if (serves) draw();
  drawPools(fleet, choose);
}

function say(text, tone) {
  const badge = $("connection");
  if (badge.textContent !== text) badge.textContent = text;
  badge.className = `badge ${tone}`;
}

function draw() {
  const { state } = fleet;
  learnNames(fleet);
  drawWorkers(fleet, change);
  drawTimeline(fleet, why);
  drawRecent(fleet, why);
  drawFigures();
  drawIncidents(fleet);
  $("summary").textContent = `· ${state.mode}${state.policy === state.mode ? "" : `, policy ${state.policy}`}, blocks of ${state.block_size} tokens`;
  drawShadow(state.shadow);
  $("what-if").hidden = !state.may.ask;
  const text = document.querySelector('input[value="text"]');
  if (text.disabled === state.reads_text) {
    text.disabled = !state.reads_text;
    document.querySelector(`input[value="${state.reads_text ? "text" : "ids"}"]`).checked = true;
  }
}

// What --shadow-policy would have done with the requests of this process, where there is one.
function drawShadow(shadow) {
  $("shadow").hidden = shadow === null;
  if (shadow === null) return;
  const { policy, same, other, failed } = shadow;
  const none = failed ? `, none (failed) for ${count(failed)}` : "";
  $("shadow").textContent = `Shadow policy ${policy} since the start: the same worker for ${count(same)} requests, `
    + `another for ${count(other)}${none}; first tokens of those ${seconds(shadow.sooner_s)} sooner, ${seconds(shadow.later_s)} later, summed, by the forecast.`;
}

function drawFigures() {
  if (fleet.state === null) return;
  const { state, requests } = fleet;
  const bounded = requests.filter((each) => each.bound);
  const heldSomewhere = bounded.reduce((sum, each) => sum + each.bound.held_blocks, 0);
  const asked = bounded.reduce((sum, each) => sum + each.request_blocks, 0);
  const least = bounded.map((each) => each.bound.ttft_s).filter((each) => each != null);
  const rows = [...fleet.workers.values()];
  const ready = rows.filter((row) => row.state === "ready").length;
  const exact = rows.filter((row) => row.trust === "exact" || row.trust === "trimmed").length;
  const unknown = rows.filter((row) => row.trust === "unknown").length;
  const plane = state.health.event_plane?.state ?? "unknown";
  const idle = least.length ? quantile(least, 0.5) : null;
  drawTiles(history, {
    idle,
    heldSomewhere: asked ? heldSomewhere / asked : null,
    tiles: [
      { name: "Workers ready", value: `${count(ready)} of ${count(rows.length)}`, more: rows.length ? share(ready / rows.length) : "none is known",
        tone: ready === 0 ? "bad" : ready < rows.length ? "warn" : null, meaning: "Ranks of workers that take requests.",
        lines: [["faint", (step) => history.number(step, "workers")], ["accent", (step) => history.number(step, "ready")]] },
      { name: "Event sources exact", value: `${count(exact)} of ${count(rows.length)}`, more: `event plane ${plane}`,
        tone: unknown && unknown === rows.length ? "bad" : unknown ? "warn" : null, meaning: "Workers whose every cache event is known. Of the others caches are predicted, or what is known of them is old." },
    ],
  });
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
  const name = `${nameOf(row.worker)} (${row.worker})`;
  if (!back && !window.confirm(`Send worker ${name} no new requests?`)) return;
  try {
    if (back) await call("/workers", { url: `grpc://${row.address}` });
    else await call(`/workers/${row.worker.split("/")[0]}/drain`, {});
    $("change-note").textContent = `Worker ${name} is ${verb}.`;
  } catch (error) {
    $("change-note").textContent = `Worker ${name} was not ${verb}: ${error.message}`;
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

$("scope").addEventListener("change", async () => {
  history.choose($("scope").value);
  await readOverview().catch(() => {});
  drawFigures();
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken($("token").value);
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (paused) say("paused", "warn");
});
watchTable(() => fleet.state && drawWorkers(fleet, change));
followPointer(drawFigures);

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
  if (!paused && !document.hidden && !still.matches && fleet.state && connection.lostAt === null) drawTimeline(fleet, why);
}, 250);
poll();
