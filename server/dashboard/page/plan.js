// What a planner does: engines by role over time, and its last decisions with their reasons.

import { $, ago, el, svg } from "./dom.js";

const WIDTH = 900;
const ROW = 74;
const LEFT = 96;
const ROLES = ["aggregated", "prefill", "decode"];
const TONES = { open: "warn", done: "good", abandoned: "bad" };

const counted = (fleet) => ROLES.filter((role) => fleet?.[role]).map((role) => `${fleet[role]} ${role}`).join(", ") || "no engines";

// A line of steps: a count holds until the next one was noted.
function steps(points, x, y, value) {
  return points.map((point, at) => `${at ? `H${x(point.at)}V` : `M${x(point.at)},`}${y(value(point))}`).join("");
}

function chart(points) {
  const roles = ROLES.filter((role) => points.some((point) => point.wanted[role] || point.serving[role]));
  const [first, last] = [points[0].at, points.at(-1).at];
  const x = (at) => (LEFT + ((WIDTH - LEFT - 8) * (at - first)) / Math.max(1, last - first)).toFixed(1);
  const drawn = $("plan-chart");
  drawn.setAttribute("viewBox", `0 0 ${WIDTH} ${ROW * roles.length + 18}`);
  drawn.replaceChildren(...roles.flatMap((role, row) => {
    const present = (point) => (point.serving[role] ?? 0) + (point.starting[role] ?? 0) + (point.draining[role] ?? 0);
    const most = Math.max(1, ...points.map((point) => Math.max(point.wanted[role] ?? 0, present(point))));
    const bottom = ROW * row + ROW - 10;
    const y = (count) => (bottom - ((ROW - 22) * count) / most).toFixed(1);
    const serving = steps(points, x, y, (point) => point.serving[role] ?? 0);
    const now = points.at(-1);
    return [
      svg("text", { x: 0, y: bottom - 28 }, role),
      svg("text", { x: 0, y: bottom - 12, class: "quiet" }, `${now.serving[role] ?? 0} of ${now.wanted[role] ?? 0}`),
      svg("text", { x: LEFT - 6, y: y(most), class: "quiet", "text-anchor": "end" }, most),
      svg("text", { x: LEFT - 6, y: bottom, class: "quiet", "text-anchor": "end" }, 0),
      svg("line", { x1: LEFT, x2: WIDTH - 8, y1: bottom, y2: bottom, class: "axis" }),
      svg("path", { d: `${serving}V${bottom}H${x(first)}Z`, class: "plan-serving" }),
      svg("path", { d: steps(points, x, y, present), class: "spark faint" }),
      svg("path", { d: steps(points, x, y, (point) => point.wanted[role] ?? 0), class: "spark plan-wanted" }),
    ];
  }), svg("text", { x: LEFT, y: ROW * roles.length + 12, class: "quiet" }, ago(last - first)),
  svg("text", { x: WIDTH - 8, y: ROW * roles.length + 12, class: "quiet", "text-anchor": "end" }, ago(Date.now() / 1000 - last)));
}

// Takes the answer of /dashboard/plan.
export function drawPlan({ status, decisions }) {
  $("plan").hidden = status === null && !decisions.length;
  if ($("plan").hidden) return;
  $("plan-note").textContent = status === null ? "" : `${status.planner}, connector ${status.connector}: ${status.text}`;
  const points = status?.points ?? [];
  if (points.length) chart(points);
  document.querySelector("#plan-table tbody").replaceChildren(...decisions.map(({ decision, outcome, ended, planner }) => el("tr", null,
    el("th", { scope: "row", title: planner }, decision.id),
    el("td", { "data-name": "When" }, ago(Date.now() / 1000 - decision.at)),
    el("td", { "data-name": "From" }, counted(decision.from)),
    el("td", { "data-name": "To" }, counted(decision.to)),
    el("td", { "data-name": "State" }, el("span", { class: `badge ${TONES[decision.state ?? "open"] ?? "warn"}` }, decision.state ?? "open"),
      ended == null ? "" : ` after ${ago(Math.max(0, ended - decision.at), "")}`),
    el("td", { "data-name": "Why", class: "plan-why" }, (decision.reasons ?? []).join("; ")),
    el("td", { "data-name": "Outcome", class: "plan-why" }, outcome))));
}
