// The pools of a frontend: which one is looked at, and which others there are.

import { $, count, el, share } from "./dom.js";

const TONES = { serving: "good", down: "bad", draining: "warn", starting: "warn", refused: "bad" };

export function drawPools(fleet, choose) {
  const { pools, shown } = fleet;
  $("pools").hidden = !pools.length;
  const body = $("pool-table").tBodies[0];
  // A button that has the focus keeps it.
  const focused = body.contains(document.activeElement) ? document.activeElement.dataset.pool : null;
  const all = new Map();
  for (const each of pools) all.set(each.model, (all.get(each.model) ?? 0) + each.share);
  body.replaceChildren(...pools.map((each) => {
    const here = shown !== null && each.key === shown.key;
    const total = all.get(each.model);
    const button = el("button", { type: "button", "data-pool": each.key, "aria-pressed": String(here),
      disabled: each.state === "starting" || each.state === "refused", onclick: () => choose(each.key) },
    here ? "Shown" : "Show", el("span", { class: "unseen" }, ` ${each.key}`));
    const number = (name, value) => el("td", { class: "number", "data-name": name }, value);
    return el("tr", { class: [here ? "chosen" : "", each.state === "down" ? "ill" : ""].join(" ") },
      el("th", { scope: "row", class: "cut", title: each.model }, el("bdi", null, each.model)),
      el("td", { "data-name": "Endpoint" }, each.endpoint),
      el("td", { "data-name": "Card" }, each.card),
      el("td", { "data-name": "State", title: each.reason || null }, el("span", { class: `badge ${TONES[each.state]}` }, each.state),
        each.reason ? ` ${each.reason.slice(0, 80)}` : null),
      number("Workers", count(each.workers)),
      number("Take requests", count(each.share)),
      number("Share", share(total ? each.share / total : null)),
      number("In flight", count(each.in_flight)),
      el("td", null, button));
  }));
  if (focused) body.querySelector(`button[data-pool="${CSS.escape(focused)}"]`)?.focus();
  const refused = fleet.refusedCards;
  $("pools-note").textContent = refused ? `${count(refused)} cards get no requests: see /pools.` : "";
}
