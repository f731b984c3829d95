// Plots over time: areas and lines, with the values under the pointer.

import { h, s } from "./dom.js";

const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 12;
const TOP = 14;
const BOTTOM = 24;
const USUAL = 0.9;
const FAR = 4;
const ROOM = 1.6;

// curves: [{ name, color, area }]; a value may be absent. `least` is the minimum upper end of the axis.
export function plot({ title, curves: kinds, format, least }) {
  let width = 640;
  const svg = s("svg", { role: "img", "aria-label": title, tabindex: 0 });
  const keys = kinds.map((kind) => {
    const value = h("span", { class: "value" });
    return { value, element: h("span", { class: "key" }, h("i", { class: kind.color }), kind.name, value) };
  });
  const when = h("span", { class: "note" });
  const element = h("section", { class: "card" }, h("header", {}, h("h2", {}, title), h("span", { class: "space" }), when, ...keys.map((key) => key.element)), h("div", { class: "plot" }, svg));
  let curves = [];
  let step = 10;
  let at = null;

  const count = () => curves[0]?.length ?? 0;
  const x = (index) => LEFT + (index / Math.max(1, count() - 1)) * (width - LEFT - RIGHT);


  function draw() {
    // The full available width, so that letters keep their size.
    width = Math.max(240, svg.clientWidth || width);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const limit = limitOf(curves, least);
    const y = (value) => TOP + (1 - Math.min(value, limit) / limit) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const mark of [0, 0.5, 1]) {
      const level = y(mark * limit);
      parts.push(s("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
      parts.push(s("text", { x: LEFT - 8, y: level + 4, "text-anchor": "end" }, format(mark * limit)));
    }
    const total = Math.max(0, count() - 1) * step;
    // Without a past there is no time axis.
    for (const part of total > 0 ? [0, 0.5, 1] : [1]) {
      const seconds = total * (1 - part);
      const summary = seconds === 0 ? "now" : seconds >= 120 ? `${Math.round(seconds / 60)} min ago` : `${seconds} s ago`;
      const place = LEFT + part * (width - LEFT - RIGHT);
      parts.push(s("text", { x: place, y: HEIGHT - 6, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, summary));
    }
    curves.forEach((values, index) => {
      const { color, area } = kinds[index];
      for (const run of runs(values)) {
        // An area of zeros is not drawn: a red line would look like a value.
        if (area && run.every(([, value]) => value === 0)) continue;
        const points = run.map(([place, value]) => `${x(place).toFixed(1)} ${y(value).toFixed(1)}`);
        if (area) parts.push(s("path", { class: `area ${color}`, d: `M${x(run[0][0])} ${y(0)} L${points.join(" L")} L${x(run[run.length - 1][0])} ${y(0)} Z` }));
        if (points.length === 1) parts.push(s("circle", { class: color, cx: x(run[0][0]), cy: y(run[0][1]), r: 2.5 }));
        else parts.push(s("path", { class: `curve ${color}`, d: `M${points.join(" L")}` }));
        parts.push(...beyond(run, limit, color));
      }
    });
    const last = at ?? count() - 1;
    if (at !== null) parts.push(s("line", { class: "cursor", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }));
    svg.replaceChildren(...parts);
    keys.forEach((key, index) => {
      const value = curves[index]?.[last];
      key.value.textContent = value === null || value === undefined ? "–" : format(value);
    });
    const ago = Math.max(0, count() - 1 - last) * step;
    when.textContent = at === null ? "" : ago === 0 ? "now" : ago >= 120 ? `${Math.round(ago / 60)} min ago` : `${ago} s ago`;
  }

  // A value above the axis ends in an arrow with the value.
  function beyond(run, limit, color) {
    const [place, most] = run.reduce((high, one) => (one[1] > high[1] ? one : high));
    if (most <= limit) return [];
    const at = x(place);
    const isRight = at > width - 90;
    return [
      s("path", { class: `beyond ${color}`, d: `M${at - 5} ${TOP + 2} L${at + 5} ${TOP + 2} L${at} ${TOP - 6} Z` }),
      s("text", { x: at + (isRight ? -9 : 9), y: TOP + 13, "text-anchor": isRight ? "end" : "start" }, format(most)),
    ];
  }

  const point = (event) => {
    if (count() === 0) return;
    const box = svg.getBoundingClientRect();
    const part = (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT);
    at = Math.max(0, Math.min(count() - 1, Math.round(part * (count() - 1))));
    draw();
  };
  const leave = () => { at = null; draw(); };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || count() === 0) return;
    event.preventDefault();
    at = Math.max(0, Math.min(count() - 1, (at ?? count() - 1) + by));
    draw();
    svg.setAttribute("aria-label", `${title}: ${when.textContent}, ${keys.map((key, index) => `${kinds[index].name} ${key.value.textContent}`).join(", ")}`);
  });

  new ResizeObserver(() => { if (svg.clientWidth !== width) draw(); }).observe(svg);

  return { element, update: (fresh, seconds) => { curves = fresh; step = seconds; draw(); } };
}

// The upper end of the axis: a round number with a round half. A few values far above all others, such as those
// of a burst, do not flatten the rest.
export function limitOf(curves, least) {
  const high = Math.max(least, ...curves.map((values) => {
    const sorted = values.filter((value) => value !== null && value !== undefined).sort((one, other) => one - other);
    if (sorted.length === 0) return 0;
    const [most, usual] = [sorted[sorted.length - 1], sorted[Math.floor((sorted.length - 1) * USUAL)]];
    return usual > 0 && most > FAR * usual ? usual * ROOM : most;
  }));
  const unit = 10 ** Math.floor(Math.log10(high) + 1e-9);
  return [1, 2, 4, 6, 8, 10].map((factor) => factor * unit).find((limit) => limit >= high * (1 - 1e-9));
}

// Returns the runs of values without a gap.
function runs(values) {
  const found = [];
  let run = [];
  values.forEach((value, place) => {
    if (value === null || value === undefined) {
      if (run.length) found.push(run);
      run = [];
    } else run.push([place, value]);
  });
  if (run.length) found.push(run);
  return found;
}
