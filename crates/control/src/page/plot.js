// Plots over time: areas and lines, with the values under the pointer.

import { h, s } from "./dom.js";

const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 12;
const TOP = 14;
const BOTTOM = 24;
const TYPICAL_SHARE = 0.9;
const OUTLIER_FACTOR = 4;
const HEADROOM = 1.6;

// curves: [{ name, color, area }]; a value may be absent. `topMin` is the minimum upper end of the axis.
export function plot({ title, curves: options, format, topMin }) {
  let width = 640;
  const svg = s("svg", { role: "img", "aria-label": title, tabindex: 0 });
  const keys = options.map((option) => {
    const value = h("span", { class: "value" });
    return { value, element: h("span", { class: "key" }, h("i", { class: option.color }), option.name, value) };
  });
  const timeLabel = h("span", { class: "note" });
  const element = h("section", { class: "card" }, h("header", {}, h("h2", {}, title), h("span", { class: "space" }), timeLabel, ...keys.map((key) => key.element)), h("div", { class: "plot" }, svg));
  let curves = [];
  let step = 10;
  let cursor = null;

  const count = () => curves[0]?.length ?? 0;
  const x = (index) => LEFT + (index / Math.max(1, count() - 1)) * (width - LEFT - RIGHT);


  function draw() {
    // The full available width, so that letters keep their size.
    width = Math.max(240, svg.clientWidth || width);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const limit = limitOf(curves, topMin);
    const y = (value) => TOP + (1 - Math.min(value, limit) / limit) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const fraction of [0, 0.5, 1]) {
      const level = y(fraction * limit);
      parts.push(s("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
      parts.push(s("text", { x: LEFT - 8, y: level + 4, "text-anchor": "end" }, format(fraction * limit)));
    }
    const total = Math.max(0, count() - 1) * step;
    // Without a past there is no time axis.
    for (const fraction of total > 0 ? [0, 0.5, 1] : [1]) {
      const seconds = total * (1 - fraction);
      const summary = seconds === 0 ? "now" : seconds >= 120 ? `${Math.round(seconds / 60)} min ago` : `${seconds} s ago`;
      const x0 = LEFT + fraction * (width - LEFT - RIGHT);
      parts.push(s("text", { x: x0, y: HEIGHT - 6, "text-anchor": fraction === 0 ? "start" : fraction === 1 ? "end" : "middle" }, summary));
    }
    curves.forEach((values, index) => {
      const { color, area } = options[index];
      for (const run of runs(values)) {
        // An area of zeros is not drawn: a red line would look like a value.
        if (area && run.every(([, value]) => value === 0)) continue;
        const points = run.map(([index, value]) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`);
        if (area) parts.push(s("path", { class: `area ${color}`, d: `M${x(run[0][0])} ${y(0)} L${points.join(" L")} L${x(run[run.length - 1][0])} ${y(0)} Z` }));
        if (points.length === 1) parts.push(s("circle", { class: color, cx: x(run[0][0]), cy: y(run[0][1]), r: 2.5 }));
        else parts.push(s("path", { class: `curve ${color}`, d: `M${points.join(" L")}` }));
        parts.push(...overflowArrow(run, limit, color));
      }
    });
    const last = cursor ?? count() - 1;
    if (cursor !== null) parts.push(s("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: TOP, y2: HEIGHT - BOTTOM }));
    svg.replaceChildren(...parts);
    keys.forEach((key, index) => {
      const value = curves[index]?.[last];
      key.value.textContent = value === null || value === undefined ? "–" : format(value);
    });
    const ago = Math.max(0, count() - 1 - last) * step;
    timeLabel.textContent = cursor === null ? "" : ago === 0 ? "now" : ago >= 120 ? `${Math.round(ago / 60)} min ago` : `${ago} s ago`;
  }

  // A value above the axis ends in an arrow with the value.
  function overflowArrow(run, limit, color) {
    const [index, max] = run.reduce((high, candidate) => (candidate[1] > high[1] ? candidate : high));
    if (max <= limit) return [];
    const at = x(index);
    const isRight = at > width - 90;
    return [
      s("path", { class: `beyond ${color}`, d: `M${at - 5} ${TOP + 2} L${at + 5} ${TOP + 2} L${at} ${TOP - 6} Z` }),
      s("text", { x: at + (isRight ? -9 : 9), y: TOP + 13, "text-anchor": isRight ? "end" : "start" }, format(max)),
    ];
  }

  const point = (event) => {
    if (count() === 0) return;
    const box = svg.getBoundingClientRect();
    const part = (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT);
    cursor = Math.max(0, Math.min(count() - 1, Math.round(part * (count() - 1))));
    draw();
  };
  const leave = () => { cursor = null; draw(); };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const delta = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!delta || count() === 0) return;
    event.preventDefault();
    cursor = Math.max(0, Math.min(count() - 1, (cursor ?? count() - 1) + delta));
    draw();
    svg.setAttribute("aria-label", `${title}: ${timeLabel.textContent}, ${keys.map((key, index) => `${options[index].name} ${key.value.textContent}`).join(", ")}`);
  });

  new ResizeObserver(() => { if (svg.clientWidth !== width) draw(); }).observe(svg);

  return { element, update: (newCurves, seconds) => { curves = newCurves; step = seconds; draw(); } };
}

// The upper end of the axis: a round number with a round half. A few values far above all others, such as those
// of a burst, do not flatten the rest.
export function limitOf(curves, topMin) {
  const highest = Math.max(topMin, ...curves.map((values) => {
    const sorted = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
    if (sorted.length === 0) return 0;
    const [max, typical] = [sorted[sorted.length - 1], sorted[Math.floor((sorted.length - 1) * TYPICAL_SHARE)]];
    return typical > 0 && max > OUTLIER_FACTOR * typical ? typical * HEADROOM : max;
  }));
  const unit = 10 ** Math.floor(Math.log10(highest) + 1e-9);
  return [1, 2, 4, 6, 8, 10].map((factor) => factor * unit).find((limit) => limit >= highest * (1 - 1e-9));
}

// Returns the runs of values without a gap.
function runs(values) {
  const result = [];
  let run = [];
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      if (run.length) result.push(run);
      run = [];
    } else run.push([index, value]);
  });
  if (run.length) result.push(run);
  return result;
}
