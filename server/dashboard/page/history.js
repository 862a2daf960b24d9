// The last 15 minutes in steps of 5 s: figures of the newest step, each with a small line.

import { $, ago, count, el, rate, seconds, share, svg } from "./dom.js";

const WIDTH = 180;
const HEIGHT = 34;

export class History {
  constructor() {
    this.model = ""; // empty: all of them
    this.forget();
  }

  choose(model) {
    this.model = model;
    this.forget();
  }

  forget() {
    this.rows = new Map();
    this.layout = null;
    this.newest = -1;
    this.overview = null;
  }

  take(overview, model) {
    if (model !== this.model) return;
    // One that is younger than before was started again.
    if (this.overview !== null && overview.uptime_s < this.overview.uptime_s) this.forget();
    this.overview = overview;
    this.layout = overview.layout;
    for (const [step, ...numbers] of overview.rows) this.rows.set(step, numbers);
    this.newest = Math.floor(overview.now / this.layout.step_s) - 1;
    for (const step of this.rows.keys()) if (step <= this.newest - this.layout.steps) this.rows.delete(step);
  }

  get steps() {
    return Array.from({ length: this.layout.steps }, (_, at) => this.newest - this.layout.steps + 1 + at);
  }

  // A field's number in a step; null where there is none.
  number(step, field) {
    const at = this.layout.fields.indexOf(field);
    const row = this.rows.get(step);
    return row === undefined || at < 0 || !Number.isFinite(row[1 + at]) ? null : row[1 + at];
  }

  sum(step, ...fields) {
    const found = fields.map((field) => this.number(step, field));
    return found.includes(null) ? null : found.reduce((all, each) => all + each, 0);
  }

  perSecond(step, ...fields) {
    const found = this.sum(step, ...fields);
    return found === null ? null : (1000 * found) / this.rows.get(step)[0];
  }

  ratio(step, part, all) {
    const whole = this.number(step, all);
    return whole ? Math.min(1, this.number(step, part) / whole) : null;
  }

  // The p-th part of a step's TTFTs (which 0) or ITLs (1), as histogram_quantile of Prometheus.
  quantile(step, which, p) {
    const row = this.rows.get(step);
    if (row === undefined) return null;
    const { fields, buckets, bounds_s: bounds } = this.layout;
    const counts = row.slice(1 + fields.length + which * buckets, 1 + fields.length + (which + 1) * buckets);
    let wanted = p * counts.reduce((all, each) => all + each, 0);
    if (!(wanted > 0)) return null;
    for (const [at, here] of counts.entries()) {
      if (wanted <= here) {
        if (at >= bounds.length) return bounds.at(-1);
        const low = at ? bounds[at - 1] : 0;
        return low + (bounds[at] - low) * (wanted / here);
      }
      wanted -= here;
    }
    return bounds.at(-1);
  }

  // Of the last `steps` steps: requests that ended, and those that failed by our or an engine's fault.
  failures(steps) {
    const found = { ended: 0, failed: 0, refused: 0 };
    for (let step = this.newest - steps + 1; step <= this.newest; step += 1) {
      if (!this.rows.has(step)) continue;
      const over = this.hasHttp ? ["http_ok", "http_4xx", "http_5xx"] : ["ok", "4xx", "5xx"];
      const [ok, refused, failed] = over.map((field) => this.number(step, field));
      // A stream that fails after its head was sent is well for HTTP.
      const all = Math.max(failed, this.number(step, "5xx"));
      found.ended += ok + refused + failed;
      found.failed += Math.min(all, ok + refused + failed || all);
      found.refused += refused;
    }
    return found;
  }

  get hasHttp() {
    return [...this.rows.keys()].some((step) => this.sum(step, "http_ok", "http_4xx", "http_5xx", "http_left") > 0);
  }
}

let looked = null; // how many steps back the pointer is

export function drawTiles(history, extra) {
  const tiles = history.layout === null ? extra.tiles : [...figures(history, extra), ...extra.tiles];
  const drawn = tiles.map((tile) => drawTile(history, tile));
  $("tiles").replaceChildren(...drawn);
  const back = looked === null ? "" : `, ${ago(looked * (history.layout?.step_s ?? 5))}`;
  $("figures-note").textContent = history.layout === null ? "" : `Rates over ${history.layout.step_s} s${back}; lines: 15 minutes.`;
}

function figures(history, { idle, heldSomewhere }) {
  const at = looked === null ? history.newest : history.newest - looked;
  const http = history.hasHttp;
  const all = http ? ["http_ok", "http_4xx", "http_5xx", "http_left"] : ["ok", "4xx", "5xx", "left"];
  const of = (fields) => (step) => history.perSecond(step, ...fields);
  const p = (which, part) => (step) => history.quantile(step, which, part);
  const number = (field) => (step) => history.number(step, field);
  const [, refused, failed] = all;
  const wrong = of([refused, failed])(at);
  const lost = of([failed])(at);
  const used = number("kv_used")(at);
  return [
    { name: http ? "HTTP requests" : "Requests", value: rate(of(all)(at)), more: http
      ? `to engines: ${rate(of(["ok", "4xx", "5xx", "left"])(at))}` : `${count(number("in_flight")(at))} in flight`,
    meaning: "Requests of clients that ended. One HTTP request may need several of engines.", lines: [["accent", of(all)]] },
    { name: "Errors", value: rate(wrong), tone: lost > 0 ? "bad" : wrong > 0 ? "warn" : null,
      more: `4xx ${rate(of([refused])(at))}, 5xx ${rate(lost)}${http ? `; at engines ${rate(of(["5xx"])(at))}` : ""}`,
      meaning: "4xx (amber): the client's fault, or no capacity. 5xx (red): the router's or an engine's. gRPC's statuses count as HTTP's.",
      lines: [["warn", of([refused])], ["bad", of([failed])]] },
    { name: "TTFT, median", value: seconds(p(0, 0.5)(at)), more: `p99 ${seconds(p(0, 0.99)(at))}${idle == null ? "" : `; an idle engine ${seconds(idle)}`}`,
      meaning: "From a streaming request's arrival to its first message, from the buckets of the histogram in /metrics. An idle engine: what an engine without other requests takes for the part of the prompt that no worker held, the median of the sampled requests.",
      lines: [["faint", p(0, 0.99)], ["accent", p(0, 0.5)]] },
    { name: "ITL, median", value: seconds(p(1, 0.5)(at)), more: `p99 ${seconds(p(1, 0.99)(at))}`,
      meaning: "Between two messages of a stream.", lines: [["faint", p(1, 0.99)], ["accent", p(1, 0.5)]] },
    { name: "Output tokens", value: rate(of(["output_tokens"])(at)), more: `prompt tokens ${rate(of(["prompt_tokens"])(at))}`,
      meaning: "Counted when a request ends.", lines: [["accent", of(["output_tokens"])]] },
    { name: "Prefix cache hit rate", value: share(history.ratio(at, "cached_tokens", "prompt_tokens")),
      more: heldSomewhere == null ? "of prompt tokens" : `of prompt tokens; some worker held ${share(heldSomewhere)}`,
      meaning: "Prompt tokens that the chosen worker was expected to hold. Some worker: of the sampled requests, what the worker held that held most of them, as if all caches were one.",
      lines: [["accent", (step) => history.ratio(step, "cached_tokens", "prompt_tokens")]], most: 1 },
    { name: "Waiting", value: count(number("queued")(at)), more: `${count(number("in_flight")(at))} in flight`,
      tone: number("queued")(at) > 0 ? "warn" : null, meaning: "Requests in the admission queue.", lines: [["faint", number("in_flight")], ["accent", number("queued")]] },
    { name: "KV blocks in use", value: share(history.ratio(at, "kv_used", "kv_blocks")), more: `${count(used)} of ${count(number("kv_blocks")(at))}`,
      meaning: "Blocks of requests in flight, of those of engines that report how many they have.", lines: [["accent", (step) => history.ratio(step, "kv_used", "kv_blocks")]], most: 1 },
  ];
}

function drawTile(history, { name, value, more, meaning, tone, lines, most }) {
  const line = lines && history.layout !== null ? drawLines(history, name, lines, most, value) : null;
  return el("div", { title: meaning, class: tone ? `tile ${tone}` : "tile" }, el("dt", null, name), el("dd", null, value),
    el("dd", { class: "more" }, more), line && el("dd", { class: "line" }, line));
}

// One small picture: several lines on one scale, red where no worker took requests.
function drawLines(history, name, lines, most, value) {
  const { steps } = history;
  const values = lines.map(([, of]) => steps.map(of));
  const highest = most ?? Math.max(...values.flat().filter((each) => Number.isFinite(each)), 0);
  const y = (each) => (highest > 0 ? HEIGHT - 2 - (each / highest) * (HEIGHT - 4) : HEIGHT - 2).toFixed(1);
  const parts = [];
  steps.forEach((step, at) => {
    if (history.number(step, "ready") === 0) parts.push(svg("rect", { class: "down", x: at, y: 0, width: 1.02, height: HEIGHT }));
  });
  values.forEach((each, at) => {
    let path = "";
    each.forEach((here, x) => {
      if (!Number.isFinite(here)) return;
      const before = x > 0 && Number.isFinite(each[x - 1]);
      path += before ? `L${x} ${y(here)}` : `M${x - 0.5} ${y(here)}L${x} ${y(here)}`;
    });
    if (path) parts.push(svg("path", { class: `spark ${lines[at][0]}`, d: path }));
  });
  if (looked !== null) {
    const x = WIDTH - 1 - looked;
    parts.push(svg("path", { class: "spark pointer", d: `M${x} 0L${x} ${HEIGHT}` }));
  }
  return svg("svg", { class: "sparks", viewBox: `0 0 ${WIDTH - 1} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${name} of the last 15 minutes, now ${value}` }, ...parts);
}

// The pointer over any line shows all figures as they were then.
export function followPointer(redraw) {
  const tiles = $("tiles");
  const look = (steps) => {
    if (steps === looked) return;
    looked = steps;
    redraw();
  };
  tiles.addEventListener("pointermove", (event) => {
    const picture = event.target.closest?.(".sparks");
    if (picture == null) return look(null);
    const box = picture.getBoundingClientRect();
    const part = (event.clientX - box.left) / Math.max(1, box.width);
    return look(WIDTH - 1 - Math.min(WIDTH - 1, Math.max(0, Math.round(part * (WIDTH - 1)))));
  });
  tiles.addEventListener("pointerleave", () => look(null));
}
