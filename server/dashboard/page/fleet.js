// What is known of the router, put together from answers that bring only what is new.

const KEPT_S = 60;
const TIMEOUT_MS = 10_000;

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

let token = sessionStorage.getItem("token") ?? "";

export function useToken(given) {
  token = given;
  sessionStorage.setItem("token", given);
}

export async function call(path, body, method) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const options = { headers, cache: "no-store", method: method ?? (body === undefined ? "GET" : "POST"),
    signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  // Without an answer there is no status.
  const answer = await fetch(path, options).catch(() => {
    throw new ApiError(0, "no connection, or no answer in time");
  });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, found.error?.message ?? found.error ?? answer.statusText);
  return found;
}

export class Fleet {
  constructor() {
    this.pool = "";
    this.pools = [];
    this.shown = null;
    this.forget("");
  }

  // Look at another pool of a frontend: all that is known is of the one before.
  choose(pool) {
    this.pool = pool;
    this.forget("");
  }

  // Asks about the pool that is looked at.
  ask(name, asked, body) {
    const query = new URLSearchParams(this.pool ? { ...asked, pool: this.pool } : asked);
    return call(`/dashboard/${name}?${query}`, body);
  }

  forget(process) {
    this.process = process;
    this.workers = new Map();
    this.version = 0;
    this.requests = [];
    this.lastRequest = 0;
    this.missed = 0;
    this.incidents = [];
    this.lastIncident = 0;
    this.flights = [];
    this.state = null;
  }

  // The router's clock now; its answers say what it was.
  get now() {
    return this.state.now + (performance.now() - this.readAt) / 1000;
  }

  // When a moment of the router's clock was, by this machine's.
  wallTime(at) {
    return Date.now() - 1000 * (this.now - at);
  }

  async read() {
    const asked = this.pool;
    const state = await this.ask("state", {
      process: this.process, requests: this.lastRequest, incidents: this.lastIncident, workers: this.version,
    });
    if (asked !== this.pool) return false;
    this.pools = state.pools ?? [];
    this.refusedCards = state.refused_cards ?? 0;
    this.shown = this.pools.find((each) => each.key === state.pool) ?? null;
    if (state.process === undefined) {
      this.forget("");
      return false;
    }
    const first = this.state === null;
    if (state.process !== this.process) this.forget(state.process);
    this.state = state;
    this.readAt = performance.now();
    if (state.workers.all) this.workers.clear();
    for (const row of state.workers.rows) this.workers.set(row.worker, row);
    for (const worker of state.workers.gone) this.workers.delete(worker);
    this.version = state.workers.version;
    this.requests.push(...state.requests);
    this.requests = this.requests.filter((each) => each.ended > state.now - KEPT_S);
    if (!first) this.missed += state.missed_requests;
    this.lastRequest = state.last_request;
    this.flights = state.in_flight;
    const renewed = new Set(state.incidents.map((each) => each.number - each.count + 1));
    this.incidents = this.incidents.filter((each) => !renewed.has(each.number - each.count + 1));
    this.incidents = [...this.incidents, ...state.incidents].slice(-200);
    this.lastIncident = state.last_incident;
    return true;
  }

  // Those that need attention first, the others by number.
  get sortedWorkers() {
    const severity = (row) => (row.state === "unhealthy" || row.state === "refused" ? 0 : row.state === "ready" ? (row.sits_out ? 2 : 3) : 1);
    const order = (a, b) => severity(a) - severity(b) || (a.number ?? Infinity) - (b.number ?? Infinity)
      || a.worker.length - b.worker.length || (a.worker < b.worker ? -1 : 1);
    return [...this.workers.values()].sort(order);
  }
}
