// The prefix tree as an icicle: depth in blocks from left to right, each box split among its holders.

import { $, colour, count, svg } from "./dom.js";
import { nameOf } from "./names.js";

let across = 1200; // of the picture, in its own pixels
const HEIGHT = 300;
const TEXT_WIDTH = 70;
let focusedHash = null;

export function drawCaches({ branches }) {
  const children = branches.map(() => []);
  const roots = [];
  branches.forEach((branch, at) => (branch.parent == null ? roots : children[branch.parent]).push(at));
  const size = new Array(branches.length).fill(0);
  for (let at = branches.length - 1; at >= 0; at -= 1) { // parents come first
    const below = children[at].reduce((sum, child) => sum + size[child], 0);
    size[at] = Math.max(below, Math.sqrt(branches[at].blocks * Math.max(1, branches[at].holders)));
  }
  const picture = $("icicle");
  across = Math.max(240, picture.clientWidth || 1200);
  if (!branches.length) {
    picture.setAttribute("viewBox", `0 0 ${across} 24`);
    picture.replaceChildren(svg("text", { class: "quiet", x: 4, y: 16 }, "No worker is known to hold anything yet."));
    return;
  }
  const deepest = Math.max(...branches.map((branch) => branch.begin + branch.blocks));
  const all = roots.reduce((sum, at) => sum + size[at], 0);
  const top = new Array(branches.length).fill(0);
  const stack = (list, from) => {
    for (const at of list.sort((a, b) => size[b] - size[a])) {
      top[at] = from;
      from += size[at];
      stack(children[at], top[at]);
    }
  };
  stack(roots, 0);
  const boxes = branches.map((branch, at) => {
    const x = (branch.begin / deepest) * across;
    const width = Math.max(1, (branch.blocks / deepest) * across);
    const y = (top[at] / all) * HEIGHT;
    const height = Math.max(1, (size[at] / all) * HEIGHT);
    return drawBox(branch, at, { x, y, width, height }, { branches, children, roots });
  });
  const held = document.activeElement?.closest?.("#icicle g") != null;
  picture.setAttribute("viewBox", `0 0 ${across} ${HEIGHT + 16}`);
  picture.replaceChildren(...boxes,
    svg("text", { class: "quiet", x: 2, y: HEIGHT + 13 }, "0"),
    svg("text", { class: "quiet", x: across - 70, y: HEIGHT + 13 }, `${count(deepest)} blocks`));
  const current = boxes.find((box) => box.dataset.hash === focusedHash) ?? boxes[0];
  current.setAttribute("tabindex", "0");
  if (held) current.focus();
}

function drawBox(branch, at, box, tree) {
  const listed = branch.first.length || 1;
  const bands = branch.first.map(([worker, blocks], band) => svg("rect", { class: colour(worker), x: box.x,
    y: box.y + (band * box.height) / listed, width: Math.max(1, (box.width * blocks) / branch.blocks),
    height: box.height / listed }));
  const label = box.width > TEXT_WIDTH && box.height > 13
    ? svg("text", { x: box.x + 5, y: box.y + Math.min(box.height / 2 + 4, 16) }, `${count(branch.blocks)} blocks · ${count(branch.holders)}`) : null;
  const said = describe(branch);
  const group = svg("g", { role: "treeitem", "data-at": at, "data-hash": `${branch.begin} ${branch.hash}`, tabindex: "-1",
    "aria-label": said, "aria-level": depth(at, tree.branches), onclick: () => group.focus(),
    onfocus: () => { focusedHash = group.dataset.hash; $("branch").textContent = said; },
    onkeydown: (event) => move(event, at, tree) },
  svg("title", null, said), svg("rect", { class: "nobody", x: box.x, y: box.y, width: box.width, height: box.height, opacity: 0.25 }),
  ...bands, svg("rect", { class: box.height < 5 ? "frame thin" : "frame", x: box.x, y: box.y, width: box.width, height: box.height }), label);
  return group;
}

function depth(at, branches) {
  let level = 1;
  for (let up = branches[at].parent; up != null; up = branches[up].parent) level += 1;
  return level;
}

function describe(branch) {
  const some = branch.first.map(([worker, blocks]) => (blocks < branch.blocks ? `${nameOf(worker)} (${blocks} of them)` : nameOf(worker)));
  const others = branch.holders - branch.first.length;
  return `Blocks ${count(branch.begin)} to ${count(branch.begin + branch.blocks)}, held by ${some.join(", ") || "no worker"}`
    + `${others > 0 ? ` and ${count(others)} more` : ""}; first block ${branch.hash}${branch.more ? "; more go on from here" : ""}`;
}

function move(event, at, { branches, children, roots }) {
  const siblings = branches[at].parent == null ? roots : children[branches[at].parent];
  const place = siblings.indexOf(at);
  const to = { ArrowLeft: branches[at].parent, ArrowRight: children[at][0], ArrowUp: siblings[place - 1],
    ArrowDown: siblings[place + 1], Home: roots[0], End: roots.at(-1) }[event.key];
  if (to == null) return;
  event.preventDefault();
  const boxes = $("icicle").querySelectorAll("g");
  boxes[at].setAttribute("tabindex", "-1");
  boxes[to].setAttribute("tabindex", "0");
  boxes[to].focus();
}
