// Where each node of the tree is drawn: an icicle. A cell is as wide as the tokens in its node and below it, its
// children stand under it from the left. Pure: no page, no canvas.

/**
 * Nodes as the server tells them, linked: `children`, `parent`, `start` (tokens before it), `weight` (tokens in it
 * and below), `levels` (rows it needs). Roots of namespaces have no tokens and are left out.
 */
export function linked(nodes, clock) {
  const byId = new Map();
  const top = { id: -1, children: [], parent: null, tokens: 0, start: 0 };
  for (const node of nodes) {
    const parent = node.parent === null ? null : (byId.get(node.parent) ?? top);
    if (parent === null) {
      byId.set(node.id, top);
      continue;
    }
    const age = node.pins ? 0 : Math.max(0, clock - node.last_used);
    const found = { ...node, parent, children: [], age, start: parent.start + parent.tokens, oldest: node.id };
    parent.children.push(found);
    byId.set(node.id, found);
  }
  const all = [...byId.values()].filter((node) => node !== top);
  for (const node of [...all].reverse().concat(top)) {
    // Children come after their parents, so that they are complete here.
    node.weight = node.tokens + node.children.reduce((sum, child) => sum + child.weight, 0);
    node.levels = 1 + node.children.reduce((most, child) => Math.max(most, child.levels), 0);
    for (const child of node.children) node.oldest = Math.min(node.oldest ?? Infinity, child.oldest);
    // The oldest of a subtree is the same after a split, so its cell stays in its place.
    node.children.sort((a, b) => a.oldest - b.oldest);
  }
  top.levels -= 1;
  return { top, all, byId };
}

export function pathTo(node) {
  const path = [];
  for (let at = node; at && at.id >= 0; at = at.parent) path.unshift(at);
  return path;
}

/**
 * Cells [{node, x, y, w, h}] in a space of width x height, each row from left to right. `focus` fills the width,
 * what is above it stands over it. Nodes narrower than `least` share a cell with their neighbours.
 */
export function cellsOf(top, focus, width, height, least = 1) {
  const above = pathTo(focus).slice(0, -1);
  const rows = above.length + focus.levels;
  const h = Math.max(6, Math.min(96, height / Math.max(1, rows)));
  const cells = above.map((node, row) => ({ node, x: 0, y: row * h, w: width, h, count: 1 }));
  let row = focus === top ? [] : [{ node: focus, x: 0, w: width, count: 1 }];
  if (focus === top) row = childrenOf({ node: top, x: 0, w: width }, least);
  for (let y = above.length * h; row.length && y < height - 1; y += h) {
    for (const cell of row) cells.push({ ...cell, y, h });
    row = row.flatMap((cell) => (cell.count === 1 ? childrenOf(cell, least) : []));
  }
  return { cells, h };
}

function childrenOf({ node, x, w }, least) {
  const scale = node.weight ? w / node.weight : 0;
  const cells = [];
  let crowd = null;
  let at = x;
  for (const child of node.children) {
    const width = child.weight * scale;
    if (width >= least) {
      cells.push({ node: child, x: at, w: width, count: 1 });
      crowd = null;
    } else if (crowd && crowd.w < least) {
      crowd.w += width;
      crowd.count += 1;
      if (child.age < crowd.node.age) crowd.node = child;
    } else {
      crowd = { node: child, x: at, w: width, count: 1 };
      cells.push(crowd);
    }
    at += width;
  }
  return cells;
}
