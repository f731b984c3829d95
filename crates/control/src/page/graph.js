// The call graph, from left to right: ranks, an order with few crossings in each, and curves.

import { h, s, say, rate, share, latency, verdict } from "./dom.js";

const WIDTH = 204;
const HEIGHT = 62;
const GAP_X = 128;
const GAP_Y = 34;
const VIA = 26;
const SWEEPS = 8;
const LEAST_SCALE = 0.62;

// nodes: [{ id, kind, name, namespace, rates }], edges: [{ from, to, kind, mtls, rates }]
export function layout(nodes, edges) {
  const out = new Map(nodes.map((node) => [node.id, []]));
  for (const edge of edges) if (edge.from !== edge.to) out.get(edge.from).push(edge.to);
  const ranks = rank(nodes, out);
  const columns = [];
  const place = (id, at) => { (columns[at] ??= []).push(id); };
  for (const node of nodes) place(node.id, ranks.get(node.id));
  const links = [];
  // A curve that passes ranks gets a slot in each of them.
  const routes = new Map();
  edges.forEach((edge, index) => {
    const [from, to] = [ranks.get(edge.from), ranks.get(edge.to)];
    const steps = [edge.from];
    for (let at = from + 1; at < to; at += 1) {
      const via = `via ${index} ${at}`;
      place(via, at);
      steps.push(via);
    }
    steps.push(edge.to);
    for (let at = 1; at < steps.length; at += 1) links.push([steps[at - 1], steps[at]]);
    routes.set(index, steps);
  });
  for (let at = 0; at < columns.length; at += 1) columns[at] ??= [];
  untangle(columns, links);
  const height = (id) => (id.startsWith("via ") ? VIA : HEIGHT);
  const tall = (column) => column.reduce((sum, id) => sum + height(id) + GAP_Y, -GAP_Y);
  const total = Math.max(HEIGHT, ...columns.map(tall));
  const at = new Map();
  columns.forEach((column, index) => {
    let y = (total - tall(column)) / 2;
    for (const id of column) {
      at.set(id, { x: index * (WIDTH + GAP_X), y: y + height(id) / 2 });
      y += height(id) + GAP_Y;
    }
  });
  const width = Math.max(1, columns.length) * (WIDTH + GAP_X) - GAP_X;
  return { at, routes, width, height: total };
}

// The longest path to each node; back edges are ignored.
function rank(nodes, out) {
  const ranks = new Map();
  const state = new Map();
  const sorted = [];
  const visit = (start) => {
    const stack = [[start, 0]];
    state.set(start, 1);
    while (stack.length > 0) {
      const top = stack[stack.length - 1];
      const next = out.get(top[0])[top[1]];
      top[1] += 1;
      if (next === undefined) {
        state.set(top[0], 2);
        sorted.push(top[0]);
        stack.pop();
      } else if (!state.get(next)) {
        state.set(next, 1);
        stack.push([next, 0]);
      }
    }
  };
  const called = new Set([...out.values()].flat());
  const first = nodes.filter((node) => !called.has(node.id));
  for (const node of [...first, ...nodes]) if (!state.get(node.id)) visit(node.id);
  const order = new Map(sorted.reverse().map((id, index) => [id, index]));
  for (const id of sorted) {
    const own = ranks.get(id) ?? 0;
    ranks.set(id, own);
    for (const next of out.get(id)) {
      if (order.get(next) > order.get(id)) ranks.set(next, Math.max(ranks.get(next) ?? 0, own + 1));
    }
  }
  return ranks;
}

function untangle(columns, links) {
  const left = new Map();
  const right = new Map();
  for (const [from, to] of links) {
    right.set(from, [...(right.get(from) ?? []), to]);
    left.set(to, [...(left.get(to) ?? []), from]);
  }
  const sweep = (column, other, neighbors) => {
    const index = new Map(other.map((id, at) => [id, at / Math.max(1, other.length - 1)]));
    const weight = new Map(column.map((id, at) => {
      const near = (neighbors.get(id) ?? []).filter((id) => index.has(id)).map((id) => index.get(id));
      const own = at / Math.max(1, column.length - 1);
      return [id, near.length ? near.reduce((sum, y) => sum + y, 0) / near.length : own];
    }));
    column.sort((one, two) => weight.get(one) - weight.get(two));
  };
  for (let round = 0; round < SWEEPS; round += 1) {
    for (let at = 1; at < columns.length; at += 1) sweep(columns[at], columns[at - 1], left);
    for (let at = columns.length - 2; at >= 0; at -= 1) sweep(columns[at], columns[at + 1], right);
  }
}

function curve(steps, at, isBack) {
  const points = steps.map((id) => at.get(id));
  const start = points[0];
  const end = points[points.length - 1];
  let [x, y] = [start.x + WIDTH, start.y];
  let path = `M${x} ${y}`;
  if (isBack) {
    // Over the top.
    const above = Math.min(start.y, end.y) - HEIGHT;
    return { path: `${path} C${x + 60} ${above} ${end.x - 60} ${above} ${end.x} ${end.y}`, label: { x: (x + end.x) / 2, y: above + 16 } };
  }
  const to = (nx, ny) => {
    const half = (nx - x) / 2;
    path += ` C${x + half} ${y} ${nx - half} ${ny} ${nx} ${ny}`;
    [x, y] = [nx, ny];
  };
  for (const via of points.slice(1, -1)) {
    to(via.x, via.y);
    path += ` L${via.x + WIDTH} ${via.y}`;
    x = via.x + WIDTH;
  }
  const label = points.length > 2
    ? { x: points[1].x + WIDTH / 2, y: points[1].y }
    : { x: (start.x + WIDTH + end.x) / 2, y: (start.y + end.y) / 2 };
  to(end.x, end.y);
  return { path, label };
}

export function graph({ open }) {
  const element = h("div", { class: "stage" });
  const table = h("table", { class: "hidden" });
  let shape = "";
  let parts = null;

  function build(nodes, edges) {
    const { at, routes, width, height } = layout(nodes, edges);
    const pad = 28;
    const svg = s("svg", { class: "graph", role: "group", "aria-label": "Calls between services", viewBox: `${-pad} ${-pad} ${width + 2 * pad} ${height + 2 * pad}` });
    // At most the drawn size, smaller to fit, and never too small to read.
    svg.style.maxWidth = `${width + 2 * pad}px`;
    svg.style.minWidth = `${(width + 2 * pad) * LEAST_SCALE}px`;
    const lines = s("g");
    const labels = s("g");
    const boxes = s("g");
    svg.append(lines, boxes, labels);
    const made = { nodes: new Map(), edges: [] };
    edges.forEach((edge, index) => {
      const steps = routes.get(index);
      const isBack = at.get(edge.to).x <= at.get(edge.from).x;
      const { path, label } = curve(steps, at, isBack);
      const flow = s("path", { class: "flow", d: path });
      const group = s("g", { class: "edge" }, s("path", { class: "line", d: path }), flow);
      const text = s("text", { "text-anchor": "middle", dy: ".35em" });
      const box = s("rect", { rx: 9, height: 18, y: -9 });
      const lock = s("g", { class: "lock" }, s("title", {}, "mutual TLS, both peers verified"), s("rect", { class: "body", x: -4, y: -1, width: 8, height: 6, rx: 1 }), s("path", { d: "M-2.500 -1 v-1.500 a2.500 2.500 0 0 1 5 0 V-1" }));
      const tag = s("g", { class: "edge" }, s("g", { class: "label", transform: `translate(${label.x} ${label.y})` }, box, lock, text));
      lines.append(group);
      labels.append(tag);
      made.edges.push({ group, tag, flow, text, box, lock });
    });
    for (const node of nodes) {
      const { x, y } = at.get(node.id);
      const figures = s("text", { class: "figures", x: 18, y: HEIGHT / 2 + 17 });
      const press = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(node); } };
      const name = node.name.length > 22 ? `${node.name.slice(0, 21)}…` : node.name;
      const group = s("g", { class: "node", tabindex: 0, role: "link", transform: `translate(${x} ${y - HEIGHT / 2})`, click: () => open(node), keydown: press, "data-node": node.id },
        s("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 12 }),
        s("rect", { class: "bar", x: 7, y: 14, width: 4, height: HEIGHT - 28, rx: 2 }),
        s("text", { class: "namespace", x: 18, y: 16 }, node.kind === "workload" ? `workload · ${node.namespace}` : node.namespace),
        s("text", { class: "name", x: 18, y: HEIGHT / 2 + 1 }, name),
        figures);
      boxes.append(group);
      made.nodes.set(node.id, { group, figures });
    }
    element.replaceChildren(svg, table);
    return made;
  }

  function update(nodes, edges) {
    const now = JSON.stringify([nodes.map((node) => node.id), edges.map((edge) => [edge.from, edge.to])]);
    if (now !== shape) {
      const focused = element.contains(document.activeElement) ? document.activeElement.dataset.node : null;
      parts = build(nodes, edges);
      shape = now;
      if (focused) parts.nodes.get(focused)?.group.focus();
    }
    for (const node of nodes) {
      const { group, figures } = parts.nodes.get(node.id);
      const state = verdict(node.rates);
      group.setAttribute("class", `node ${node.kind} ${state}`);
      const summary = state === "idle" ? (node.kind === "workload" ? "client only" : "no requests")
        : `${rate(node.rates.per_second)} · ${share(node.rates.success)} · ${latency(node.rates.p99_ms)}`;
      say(figures, summary);
      group.setAttribute("aria-label", `${node.name}, ${node.namespace}: ${summary}`);
    }
    edges.forEach((edge, index) => {
      const { group, tag, flow, text, box, lock } = parts.edges[index];
      const state = verdict(edge.rates);
      for (const part of [group, tag]) part.setAttribute("class", `edge ${edge.kind} ${state}`);
      const summary = state === "idle" ? "idle" : state === "good" ? rate(edge.rates.per_second)
        : `${rate(edge.rates.per_second)} · ${Math.floor(edge.rates.success * 100)} %`;
      say(text, summary);
      const width = summary.length * 6.4 + (edge.mtls ? 30 : 16);
      box.setAttribute("width", width);
      box.setAttribute("x", -width / 2);
      text.setAttribute("x", edge.mtls ? 6 : 0);
      lock.setAttribute("transform", `translate(${-width / 2 + 12} 0)`);
      lock.setAttribute("visibility", edge.mtls ? "visible" : "hidden");
      // Busy edges are thicker and move faster.
      const busy = Math.log10(1 + edge.rates.per_second);
      flow.style.strokeWidth = `${2.4 + Math.min(2.4, busy * 0.7)}px`;
      const seconds = `${(2.4 / (1 + busy)).toFixed(1)}s`;
      if (flow.style.animationDuration !== seconds) flow.style.animationDuration = seconds;
    });
    const row = (edge) => h("tr", {}, h("td", {}, edge.from), h("td", {}, edge.to), h("td", {}, rate(edge.rates.per_second)), h("td", {}, share(edge.rates.success)), h("td", {}, edge.mtls ? "mutual TLS" : "not observed"));
    table.replaceChildren(h("caption", {}, "Calls between services"), h("tr", {}, ...["from", "to", "rate", "success", "encrypted"].map((name) => h("th", {}, name))), ...edges.map(row));
  }

  return { element, update };
}
