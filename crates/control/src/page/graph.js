// Draws the call graph from left to right: nodes in columns by rank, in an order with few crossings, and curved edges.
// A curve that passes a column has an invisible node there, a `via`, so that no visible node is in its way.

import { h, s, setText, formatRate, formatShare, formatLatency, healthState } from "./dom.js";

// Sizes and gaps, in units of the SVG.
const NODE_WIDTH = 204;
const NODE_HEIGHT = 62;
const COLUMN_GAP = 128;
const NODE_GAP = 34;
const VIA_HEIGHT = 26;
// The number of passes over all columns that reduce the crossings.
const SWEEPS = 8;
// The smallest scale at which the text is readable.
const MIN_SCALE = 0.62;

// nodes: [{ id, kind, name, namespace, rates }], edges: [{ from, to, kind, mtls, rates }]. Returns the left end of the
// center line of each node and via by ID, the path of each edge (the IDs of its nodes and vias) by the edge's index, and
// the size.
export function layout(nodes, edges) {
  const successors = new Map(nodes.map((node) => [node.id, []]));
  for (const edge of edges) if (edge.from !== edge.to) successors.get(edge.from).push(edge.to);
  const ranks = rank(nodes, successors);
  const columns = [];
  const addToColumn = (id, rank) => { (columns[rank] ??= []).push(id); };
  for (const node of nodes) addToColumn(node.id, ranks.get(node.id));
  const links = [];
  // A curve that passes other ranks gets a via in each of them.
  const edgePaths = new Map();
  edges.forEach((edge, index) => {
    const [from, to] = [ranks.get(edge.from), ranks.get(edge.to)];
    const steps = [edge.from];
    for (let rank = from + 1; rank < to; rank += 1) {
      const via = `via ${index} ${rank}`;
      addToColumn(via, rank);
      steps.push(via);
    }
    steps.push(edge.to);
    for (let step = 1; step < steps.length; step += 1) links.push([steps[step - 1], steps[step]]);
    edgePaths.set(index, steps);
  });
  for (let index = 0; index < columns.length; index += 1) columns[index] ??= [];
  reduceCrossings(columns, links);
  const height = (id) => (id.startsWith("via ") ? VIA_HEIGHT : NODE_HEIGHT);
  const columnHeight = (column) => column.reduce((sum, id) => sum + height(id) + NODE_GAP, -NODE_GAP);
  const totalHeight = Math.max(NODE_HEIGHT, ...columns.map(columnHeight));
  const positions = new Map();
  columns.forEach((column, index) => {
    let y = (totalHeight - columnHeight(column)) / 2;
    for (const id of column) {
      positions.set(id, { x: index * (NODE_WIDTH + COLUMN_GAP), y: y + height(id) / 2 });
      y += height(id) + NODE_GAP;
    }
  });
  const width = Math.max(1, columns.length) * (NODE_WIDTH + COLUMN_GAP) - COLUMN_GAP;
  return { positions, edgePaths, width, height: totalHeight };
}

// Returns the rank of each node: the length of the longest path to it. Edges that close a cycle do not count.
function rank(nodes, successors) {
  const ranks = new Map();
  // 1 while a node is on the stack, 2 after all its successors were visited.
  const visitState = new Map();
  const sorted = [];
  const visit = (start) => {
    // Pairs of a node and the index of its next successor.
    const stack = [[start, 0]];
    visitState.set(start, 1);
    while (stack.length > 0) {
      const entry = stack[stack.length - 1];
      const successor = successors.get(entry[0])[entry[1]];
      entry[1] += 1;
      if (successor === undefined) {
        visitState.set(entry[0], 2);
        sorted.push(entry[0]);
        stack.pop();
      } else if (!visitState.get(successor)) {
        visitState.set(successor, 1);
        stack.push([successor, 0]);
      }
    }
  };
  const called = new Set([...successors.values()].flat());
  const roots = nodes.filter((node) => !called.has(node.id));
  for (const node of [...roots, ...nodes]) if (!visitState.get(node.id)) visit(node.id);
  // `reverse` changes `sorted` itself, and the loop below uses the new order.
  const topologicalOrder = new Map(sorted.reverse().map((id, index) => [id, index]));
  for (const id of sorted) {
    const ownRank = ranks.get(id) ?? 0;
    ranks.set(id, ownRank);
    for (const successor of successors.get(id)) {
      if (topologicalOrder.get(successor) > topologicalOrder.get(id)) ranks.set(successor, Math.max(ranks.get(successor) ?? 0, ownRank + 1));
    }
  }
  return ranks;
}

// Sorts each column several times by the mean position of its nodes' neighbors: in the previous column while going to
// the right, then in the next column while going to the left.
function reduceCrossings(columns, links) {
  const left = new Map();
  const right = new Map();
  for (const [from, to] of links) {
    right.set(from, [...(right.get(from) ?? []), to]);
    left.set(to, [...(left.get(to) ?? []), from]);
  }
  const sweep = (column, adjacent, neighbors) => {
    const adjacentPositions = new Map(adjacent.map((id, index) => [id, index / Math.max(1, adjacent.length - 1)]));
    const weight = new Map(column.map((id, index) => {
      const neighborWeights = (neighbors.get(id) ?? []).filter((id) => adjacentPositions.has(id)).map((id) => adjacentPositions.get(id));
      const ownWeight = index / Math.max(1, column.length - 1);
      return [id, neighborWeights.length ? neighborWeights.reduce((sum, y) => sum + y, 0) / neighborWeights.length : ownWeight];
    }));
    column.sort((a, b) => weight.get(a) - weight.get(b));
  };
  for (let sweepIndex = 0; sweepIndex < SWEEPS; sweepIndex += 1) {
    for (let index = 1; index < columns.length; index += 1) sweep(columns[index], columns[index - 1], left);
    for (let index = columns.length - 2; index >= 0; index -= 1) sweep(columns[index], columns[index + 1], right);
  }
}

// Returns the path of an edge, and the position of its label.
function curve(steps, positions, isBack) {
  const points = steps.map((id) => positions.get(id));
  const start = points[0];
  const end = points[points.length - 1];
  let [x, y] = [start.x + NODE_WIDTH, start.y];
  let path = `M${x} ${y}`;
  if (isBack) {
    // An edge to the same or an earlier rank passes above the nodes.
    const above = Math.min(start.y, end.y) - NODE_HEIGHT;
    return { path: `${path} C${x + 60} ${above} ${end.x - 60} ${above} ${end.x} ${end.y}`, label: { x: (x + end.x) / 2, y: above + 16 } };
  }
  const curveTo = (toX, toY) => {
    const half = (toX - x) / 2;
    path += ` C${x + half} ${y} ${toX - half} ${toY} ${toX} ${toY}`;
    [x, y] = [toX, toY];
  };
  for (const via of points.slice(1, -1)) {
    curveTo(via.x, via.y);
    path += ` L${via.x + NODE_WIDTH} ${via.y}`;
    x = via.x + NODE_WIDTH;
  }
  const label = points.length > 2
    ? { x: points[1].x + NODE_WIDTH / 2, y: points[1].y }
    : { x: (start.x + NODE_WIDTH + end.x) / 2, y: (start.y + end.y) / 2 };
  curveTo(end.x, end.y);
  return { path, label };
}

// Creates the graph. `open(node)` is called when the user selects a node. `update` gets the nodes and edges of `layout`.
export function graph({ open }) {
  const element = h("div", { class: "stage" });
  const table = h("table", { class: "hidden" });
  let shownShape = "";
  let shownElements = null;

  function build(nodes, edges) {
    const { positions, edgePaths, width, height } = layout(nodes, edges);
    const padding = 28;
    const svg = s("svg", { class: "graph", role: "group", "aria-label": "Calls between services", viewBox: `${-padding} ${-padding} ${width + 2 * padding} ${height + 2 * padding}` });
    // At most the drawn size, smaller to fit, and never too small to read.
    svg.style.maxWidth = `${width + 2 * padding}px`;
    svg.style.minWidth = `${(width + 2 * padding) * MIN_SCALE}px`;
    const edgeLayer = s("g");
    const labelLayer = s("g");
    const nodeLayer = s("g");
    svg.append(edgeLayer, nodeLayer, labelLayer);
    const newElements = { nodes: new Map(), edges: [] };
    edges.forEach((edge, index) => {
      const steps = edgePaths.get(index);
      const isBack = positions.get(edge.to).x <= positions.get(edge.from).x;
      const { path, label } = curve(steps, positions, isBack);
      const flow = s("path", { class: "flow", d: path });
      const group = s("g", { class: "edge" }, s("path", { class: "line", d: path }), flow);
      const text = s("text", { "text-anchor": "middle", dy: ".35em" });
      const box = s("rect", { rx: 9, height: 18, y: -9 });
      const lock = s("g", { class: "lock" }, s("title", {}, "mutual TLS, both peers verified"), s("rect", { class: "body", x: -4, y: -1, width: 8, height: 6, rx: 1 }), s("path", { d: "M-2.500 -1 v-1.500 a2.500 2.500 0 0 1 5 0 V-1" }));
      const labelGroup = s("g", { class: "edge" }, s("g", { class: "label", transform: `translate(${label.x} ${label.y})` }, box, lock, text));
      edgeLayer.append(group);
      labelLayer.append(labelGroup);
      newElements.edges.push({ group, labelGroup, flow, text, box, lock });
    });
    for (const node of nodes) {
      const { x, y } = positions.get(node.id);
      const figures = s("text", { class: "figures", x: 18, y: NODE_HEIGHT / 2 + 17 });
      const openOnKey = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(node); } };
      const name = node.name.length > 22 ? `${node.name.slice(0, 21)}…` : node.name;
      const group = s("g", { class: "node", tabindex: 0, role: "link", transform: `translate(${x} ${y - NODE_HEIGHT / 2})`, click: () => open(node), keydown: openOnKey, "data-node": node.id },
        s("rect", { class: "box", width: NODE_WIDTH, height: NODE_HEIGHT, rx: 12 }),
        s("rect", { class: "bar", x: 7, y: 14, width: 4, height: NODE_HEIGHT - 28, rx: 2 }),
        s("text", { class: "namespace", x: 18, y: 16 }, node.kind === "workload" ? `workload · ${node.namespace}` : node.namespace),
        s("text", { class: "name", x: 18, y: NODE_HEIGHT / 2 + 1 }, name),
        figures);
      nodeLayer.append(group);
      newElements.nodes.set(node.id, { group, figures });
    }
    element.replaceChildren(svg, table);
    return newElements;
  }

  function update(nodes, edges) {
    const newShape = JSON.stringify([nodes.map((node) => node.id), edges.map((edge) => [edge.from, edge.to])]);
    // The graph is drawn again only if its nodes or edges differ, so that it does not move with every update.
    if (newShape !== shownShape) {
      const focused = element.contains(document.activeElement) ? document.activeElement.dataset.node : null;
      shownElements = build(nodes, edges);
      shownShape = newShape;
      if (focused) shownElements.nodes.get(focused)?.group.focus();
    }
    for (const node of nodes) {
      const { group, figures } = shownElements.nodes.get(node.id);
      const state = healthState(node.rates);
      group.setAttribute("class", `node ${node.kind} ${state}`);
      const summary = state === "idle" ? (node.kind === "workload" ? "client only" : "no requests")
        : `${formatRate(node.rates.per_second)} · ${formatShare(node.rates.success)} · ${formatLatency(node.rates.p99_ms)}`;
      setText(figures, summary);
      group.setAttribute("aria-label", `${node.name}, ${node.namespace}: ${summary}`);
    }
    edges.forEach((edge, index) => {
      const { group, labelGroup, flow, text, box, lock } = shownElements.edges[index];
      const state = healthState(edge.rates);
      for (const edgeGroup of [group, labelGroup]) edgeGroup.setAttribute("class", `edge ${edge.kind} ${state}`);
      const summary = state === "idle" ? "idle" : state === "good" ? formatRate(edge.rates.per_second)
        : `${formatRate(edge.rates.per_second)} · ${Math.floor(edge.rates.success * 100)} %`;
      setText(text, summary);
      // An estimate: 6.4 units for each character, and room for the lock.
      const width = summary.length * 6.4 + (edge.mtls ? 30 : 16);
      box.setAttribute("width", width);
      box.setAttribute("x", -width / 2);
      text.setAttribute("x", edge.mtls ? 6 : 0);
      lock.setAttribute("transform", `translate(${-width / 2 + 12} 0)`);
      lock.setAttribute("visibility", edge.mtls ? "visible" : "hidden");
      // Busy edges are thicker and move faster.
      const activity = Math.log10(1 + edge.rates.per_second);
      flow.style.strokeWidth = `${2.4 + Math.min(2.4, activity * 0.7)}px`;
      const seconds = `${(2.4 / (1 + activity)).toFixed(1)}s`;
      if (flow.style.animationDuration !== seconds) flow.style.animationDuration = seconds;
    });
    // The same edges as a table, for screen readers.
    const row = (edge) => h("tr", {}, h("td", {}, edge.from), h("td", {}, edge.to), h("td", {}, formatRate(edge.rates.per_second)), h("td", {}, formatShare(edge.rates.success)), h("td", {}, edge.mtls ? "mutual TLS" : "not observed"));
    table.replaceChildren(h("caption", {}, "Calls between services"), h("tr", {}, ...["from", "to", "rate", "success", "encrypted"].map((name) => h("th", {}, name))), ...edges.map(row));
  }

  return { element, update };
}
