// Elements, and how figures are written. Nothing here takes HTML: what peers say stays text.

const SVG = "http://www.w3.org/2000/svg";

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

export const el = (tag, attributes, ...children) => made(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => made(document.createElementNS(SVG, tag), attributes, children);
export const $ = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en");

export function count(value) {
  return Number.isFinite(value) ? whole.format(Math.round(value)) : "–";
}

export function rate(value) {
  if (!Number.isFinite(value)) return "–";
  return `${value >= 100 ? whole.format(Math.round(value)) : value >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1)} /s`;
}

export function seconds(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.1 ? 1 : 0)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

export function share(value) {
  return value == null || !Number.isFinite(value) ? "–" : `${(100 * value).toFixed(0)} %`;
}

export function figure(value) {
  if (value == null) return "∞";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return count(value);
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

export function ago(value, behind = " ago") {
  if (!Number.isFinite(value)) return "–";
  if (behind && value < 1.5) return "now";
  if (value < 90) return `${Math.max(0, value).toFixed(0)} s${behind}`;
  if (value < 5400) return `${(value / 60).toFixed(0)} min${behind}`;
  return value < 172800 ? `${(value / 3600).toFixed(0)} h${behind}` : `${(value / 86400).toFixed(0)} days${behind}`;
}

// A moment of this machine's clock, in ms, as people write it.
export function clockTime(at) {
  return Number.isFinite(at) ? new Date(at).toLocaleTimeString("en-GB") : "–";
}

// The p-th part of the values, 0 to 1; null of none.
export function quantile(values, p) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))];
}

// A bar beside its figure, for those who see it.
export function meter(value, most) {
  const width = most > 0 && Number.isFinite(value) ? Math.min(100, (100 * value) / most) : 0;
  return svg("svg", { class: "meter", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", width: 100, height: 10 }), svg("rect", { class: "filled", width, height: 10 }));
}

const colours = new Map();

// The class that colours a worker: the same as long as the page is open.
export function colour(worker) {
  if (worker == null) return "nobody";
  if (!colours.has(worker)) colours.set(worker, colours.size % 12);
  return `c${colours.get(worker)}`;
}

export function swatch(worker) {
  return svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" },
    svg("rect", { class: colour(worker), width: 10, height: 10, rx: 2 }));
}
