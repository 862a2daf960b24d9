// What the router has told so far, put together from answers that bring only what is new.

const KEPT_S = 60;

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
  const options = { headers, cache: "no-store", method: method ?? (body === undefined ? "GET" : "POST") };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, told.error?.message ?? told.error ?? answer.statusText);
  return told;
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
    this.told = null;
  }

  // The router's clock now; its answers say what it was.
  get now() {
    return this.told.now + (performance.now() - this.toldAt) / 1000;
  }

  async read() {
    const asked = this.pool;
    const told = await this.ask("state", {
      process: this.process, requests: this.lastRequest, incidents: this.lastIncident, workers: this.version,
    });
    if (asked !== this.pool) return false;
    this.pools = told.pools ?? [];
    this.refusedCards = told.refused_cards ?? 0;
    this.shown = this.pools.find((each) => each.key === told.pool) ?? null;
    if (told.process === undefined) {
      this.forget("");
      return false;
    }
    const first = this.told === null;
    if (told.process !== this.process) this.forget(told.process);
    this.told = told;
    this.toldAt = performance.now();
    if (told.workers.all) this.workers.clear();
    for (const row of told.workers.rows) this.workers.set(row.worker, row);
    for (const worker of told.workers.gone) this.workers.delete(worker);
    this.version = told.workers.version;
    this.requests.push(...told.requests);
    this.requests = this.requests.filter((each) => each.ended > told.now - KEPT_S);
    if (!first) this.missed += told.missed_requests;
    this.lastRequest = told.last_request;
    this.flights = told.in_flight;
    const renewed = new Set(told.incidents.map((each) => each.number - each.count + 1));
    this.incidents = this.incidents.filter((each) => !renewed.has(each.number - each.count + 1));
    this.incidents = [...this.incidents, ...told.incidents].slice(-200);
    this.lastIncident = told.last_incident;
    return true;
  }

  get sortedWorkers() {
    const order = (a, b) => a.worker.length - b.worker.length || (a.worker < b.worker ? -1 : 1);
    return [...this.workers.values()].sort(order);
  }
}
