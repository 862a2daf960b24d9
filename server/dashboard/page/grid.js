// A cell for each worker of a large fleet: the ill ones first, the others by how busy they are.

import { $, count, svg } from "./dom.js";
import { nameOf } from "./names.js";

const CELL = window.matchMedia("(max-width: 640px)").matches ? 11 : 16;
const drawnAs = new Map(); // worker -> what its cell shows

export function drawGrid(fleet, rows, choose) {
  const picture = $("grid");
  $("grid-part").hidden = !rows.length;
  if (!rows.length) {
    picture.replaceChildren();
    drawnAs.clear();
    return;
  }
  const columns = Math.max(8, Math.floor((picture.parentElement.clientWidth || 1200) / CELL));
  const height = Math.ceil(rows.length / columns) * CELL;
  picture.setAttribute("viewBox", `0 0 ${columns * CELL} ${height}`);
  const ill = rows.filter((row) => row.state !== "ready").length;
  picture.setAttribute("aria-label", `${count(rows.length)} workers, ${count(ill)} of them take no requests; the table below has all`);
  const most = rows.reduce((found, row) => Math.max(found, row.requests ?? 0), 1);
  const cells = new Map([...picture.children].map((cell) => [cell.dataset.worker, cell]));
  const wanted = rows.map((row, at) => {
    const place = `${(at % columns) * CELL} ${Math.floor(at / columns) * CELL}`;
    const kind = kindOf(row, most);
    const shows = `${place} ${kind} ${row.requests} ${row.state}`;
    let cell = cells.get(row.worker);
    if (cell === undefined) {
      cell = svg("rect", { width: CELL - 2, height: CELL - 2, rx: 2, "data-worker": row.worker, onclick: () => choose(row.worker) }, svg("title"));
    } else if (drawnAs.get(row.worker) === shows) return cell;
    const [x, y] = place.split(" ");
    cell.setAttribute("x", x);
    cell.setAttribute("y", y);
    cell.setAttribute("class", kind);
    cell.firstChild.textContent = `${nameOf(row.worker)}: ${row.state}${row.reason ? `, ${row.reason}` : ""}, ${count(row.requests)} requests; ${row.worker}`;
    drawnAs.set(row.worker, shows);
    return cell;
  });
  for (const worker of drawnAs.keys()) if (!fleet.workers.has(worker)) drawnAs.delete(worker);
  if (wanted.length !== picture.children.length || wanted.some((cell, at) => picture.children[at] !== cell)) picture.replaceChildren(...wanted);
}

function kindOf(row, most) {
  if (row.state === "unhealthy" || row.state === "refused") return "cell-bad";
  if (row.state !== "ready" || row.sits_out) return "cell-warn";
  const busy = (row.requests ?? 0) / Math.max(1, row.most_requests ?? most);
  return `cell-${Math.min(4, Math.ceil(busy * 4))}`;
}
