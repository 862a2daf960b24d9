// What is wrong, in a line at the top: since when, and the last error.

import { $, ago, clockTime, count, el, share } from "./dom.js";
import { nameOf, shortModel } from "./names.js";

const RECENT_STEPS = 3; // 15 s
const MOST_FAIL = 0.5;
const NEWLY_S = 15;
const ILL = new Set(["unhealthy", "refused"]);
const PLANE_WELL = new Set(["connected", "off", "unknown"]);

export function isIll(row) {
  return ILL.has(row.state);
}

// {tone, title, lines} of what is worst.
export function judge(fleet, history, connection) {
  const found = [];
  if (connection.lostAt !== null) {
    found.push({ tone: "bad", title: `The router does not answer: ${connection.error}`,
      lines: [`Since ${clockTime(connection.lostAt)}. All below is as it was then.`] });
  }
  if (fleet.state === null) return worst(found, null);
  const { state } = fleet;
  found.push(...outages(fleet), ...failing(fleet, history), ...ailing(fleet));
  const overview = history.overview;
  if (overview?.missing) found.push({ tone: "warn", title: `${overview.missing} of ${overview.processes} processes of the router do not answer`, lines: [] });
  const plane = state.health.event_plane?.state ?? "unknown";
  if (!PLANE_WELL.has(plane)) found.push({ tone: "warn", title: `The event plane is ${plane}: what is known of caches grows old`, lines: [] });
  if (state.health.draining) found.push({ tone: "warn", title: "The router drains: it takes no more requests", lines: [] });
  const rows = [...fleet.workers.values()];
  const ready = rows.filter((row) => row.state === "ready").length;
  if (rows.length === 1) return worst(found, "The worker takes requests; no request failed lately");
  return worst(found, `${ready === rows.length ? "All " : `${count(ready)} of `}${count(rows.length)} workers take requests; no request failed lately`);
}

function worst(found, well) {
  if (!found.length) return { tone: well === null ? "warn" : "good", title: well ?? "No pool serves yet", lines: [] };
  const bad = found.filter((each) => each.tone === "bad");
  const first = bad[0] ?? found[0];
  return { ...first, others: found.filter((each) => each !== first).map((each) => each.title) };
}

function outages(fleet) {
  const down = fleet.pools.filter((pool) => pool.state === "down");
  const others = down.filter((pool) => pool.key !== fleet.shown?.key)
    .map((pool) => ({ tone: "bad", title: `Outage of ${shortModel(pool.model)}: none of its ${count(pool.workers)} workers takes requests`, lines: [] }));
  const { state } = fleet;
  if (state.down_since === null) return others;
  const lasts = fleet.now - state.down_since;
  const starting = lasts < NEWLY_S && ![...fleet.workers.values()].some(isIll);
  const of = fleet.pools.length > 1 && fleet.shown ? ` of ${shortModel(fleet.shown.model)}` : "";
  const all = fleet.workers.size;
  return [{ tone: starting ? "warn" : "bad",
    title: starting ? "No worker takes requests yet"
      : `Outage${of}: ${all ? `0 of ${count(all)} workers take requests` : "there is no worker"}`,
    lines: [`Since ${clockTime(fleet.wallTime(state.down_since))} (${ago(lasts, "")}).`, lastError(fleet)] }, ...others];
}

function lastError(fleet) {
  const error = fleet.state.last_error;
  if (error === null) {
    const row = [...fleet.workers.values()].find((each) => each.state !== "ready" && each.reason);
    return row ? `${nameOf(row.worker)} is ${row.state}: ${row.reason.slice(0, 200)}` : "No error was seen.";
  }
  const where = error.worker == null ? "" : `${nameOf(error.worker)}: `;
  return `Last error, ${ago(fleet.now - error.at)}: ${where}${error.text}`;
}

function failing(fleet, history) {
  if (history.layout === null) return [];
  const { ended, failed } = history.failures(RECENT_STEPS);
  if (!failed) return [];
  const part = ended ? failed / ended : 1;
  const newest = history.overview.http_errors.find((each) => each.status >= 500);
  const http = newest && history.overview.now - newest.ended < 60
    ? `Last error: ${newest.status} ${newest.route}, ${newest.error || "no text"}` : lastError(fleet);
  return [{ tone: part >= MOST_FAIL ? "bad" : "warn", lines: [http],
    title: `${share(part)} of requests fail: ${count(failed)} in the last ${RECENT_STEPS * history.layout.step_s} s` }];
}

function ailing(fleet) {
  const ill = [...fleet.workers.values()].filter(isIll);
  if (!ill.length || fleet.state.down_since !== null) return [];
  const some = ill.slice(0, 4).map((row) => `${nameOf(row.worker)}${row.reason ? ` (${row.reason.slice(0, 80)})` : ` (${row.state})`}`);
  return [{ tone: "warn", title: `${count(ill.length)} of ${count(fleet.workers.size)} workers are out of order`,
    lines: [`${some.join(", ")}${ill.length > some.length ? ` and ${count(ill.length - some.length)} more` : ""}`] }];
}

export function drawVerdict({ tone, title, lines, others = [] }) {
  const place = $("verdict");
  place.className = tone;
  const heading = $("verdict-title");
  // Screen readers hear it when it changes.
  const written = `${tone === "bad" ? "✖ " : tone === "warn" ? "▲ " : "✔ "}${title}`;
  if (heading.textContent !== written) heading.textContent = written;
  const more = [...lines, ...(others.length ? [`Also: ${others.join("; ")}.`] : [])];
  $("verdict-more").replaceChildren(...more.map((line) => el("p", { dir: "auto" }, line)));
  document.title = tone === "bad" ? `✖ ${title.slice(0, 40)} – dynamo-router` : "dynamo-router";
}
