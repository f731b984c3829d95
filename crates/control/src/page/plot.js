// Draws plots over time: areas and lines, with the values under the pointer.

import { h, s } from "./dom.js";

// The height of a plot and the margins around its axes, in pixels.
const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 12;
const TOP = 14;
const BOTTOM = 24;
// A curve's typical value is at this quantile. A maximum above OUTLIER_FACTOR typical values is an outlier, and the axis
// then ends at HEADROOM typical values.
const TYPICAL_SHARE = 0.9;
const OUTLIER_FACTOR = 4;
const HEADROOM = 1.6;

// curves: [{ name, color, area }]. `format` writes a value as text. `topMin` is the minimum upper end of the axis.
// `update` gets the values of each curve, of which some may be absent, and the seconds from one value to the next.
export function plot({ title, curves: curveOptions, format, topMin }) {
  let width = 640;
  const svg = s("svg", { role: "img", "aria-label": title, tabindex: 0 });
  const legendEntries = curveOptions.map((option) => {
    const value = h("span", { class: "value" });
    return { value, element: h("span", { class: "key" }, h("i", { class: option.color }), option.name, value) };
  });
  const timeLabel = h("span", { class: "note" });
  const element = h("section", { class: "card" }, h("header", {}, h("h2", {}, title), h("span", { class: "space" }), timeLabel, ...legendEntries.map((entry) => entry.element)), h("div", { class: "plot" }, svg));
  let curves = [];
  let stepSeconds = 10;
  let cursor = null;

  const valueCount = () => curves[0]?.length ?? 0;
  const x = (index) => LEFT + (index / Math.max(1, valueCount() - 1)) * (width - LEFT - RIGHT);

  function draw() {
    // The plot is drawn at its actual width, so that text keeps its size.
    width = Math.max(240, svg.clientWidth || width);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const limit = axisLimit(curves, topMin);
    const y = (value) => TOP + (1 - Math.min(value, limit) / limit) * (HEIGHT - TOP - BOTTOM);
    const shapes = [];
    for (const fraction of [0, 0.5, 1]) {
      const axisY = y(fraction * limit);
      shapes.push(s("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: axisY, y2: axisY }));
      shapes.push(s("text", { x: LEFT - 8, y: axisY + 4, "text-anchor": "end" }, format(fraction * limit)));
    }
    const totalSeconds = Math.max(0, valueCount() - 1) * stepSeconds;
    // With a single value, the time axis has only the label `now`.
    for (const fraction of totalSeconds > 0 ? [0, 0.5, 1] : [1]) {
      const seconds = totalSeconds * (1 - fraction);
      const ageText = seconds === 0 ? "now" : seconds >= 120 ? `${Math.round(seconds / 60)} min ago` : `${seconds} s ago`;
      const labelX = LEFT + fraction * (width - LEFT - RIGHT);
      shapes.push(s("text", { x: labelX, y: HEIGHT - 6, "text-anchor": fraction === 0 ? "start" : fraction === 1 ? "end" : "middle" }, ageText));
    }
    curves.forEach((values, index) => {
      const { color, area } = curveOptions[index];
      for (const run of splitAtGaps(values)) {
        // An area of zeros is not drawn: a red line at the bottom would look like failures.
        if (area && run.every(([, value]) => value === 0)) continue;
        const points = run.map(([index, value]) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`);
        if (area) shapes.push(s("path", { class: `area ${color}`, d: `M${x(run[0][0])} ${y(0)} L${points.join(" L")} L${x(run[run.length - 1][0])} ${y(0)} Z` }));
        if (points.length === 1) shapes.push(s("circle", { class: color, cx: x(run[0][0]), cy: y(run[0][1]), r: 2.5 }));
        else shapes.push(s("path", { class: `curve ${color}`, d: `M${points.join(" L")}` }));
        shapes.push(...overflowArrow(run, limit, color));
      }
    });
    const shownIndex = cursor ?? valueCount() - 1;
    if (cursor !== null) shapes.push(s("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: TOP, y2: HEIGHT - BOTTOM }));
    svg.replaceChildren(...shapes);
    legendEntries.forEach((entry, index) => {
      const value = curves[index]?.[shownIndex];
      entry.value.textContent = value === null || value === undefined ? "–" : format(value);
    });
    const secondsAgo = Math.max(0, valueCount() - 1 - shownIndex) * stepSeconds;
    timeLabel.textContent = cursor === null ? "" : secondsAgo === 0 ? "now" : secondsAgo >= 120 ? `${Math.round(secondsAgo / 60)} min ago` : `${secondsAgo} s ago`;
  }

  // An arrow marks the highest value of a run, with its figure, if it is above the axis.
  function overflowArrow(run, limit, color) {
    const [index, max] = run.reduce((highest, other) => (other[1] > highest[1] ? other : highest));
    if (max <= limit) return [];
    const arrowX = x(index);
    const isRight = arrowX > width - 90;
    return [
      s("path", { class: `beyond ${color}`, d: `M${arrowX - 5} ${TOP + 2} L${arrowX + 5} ${TOP + 2} L${arrowX} ${TOP - 6} Z` }),
      s("text", { x: arrowX + (isRight ? -9 : 9), y: TOP + 13, "text-anchor": isRight ? "end" : "start" }, format(max)),
    ];
  }

  const moveCursor = (event) => {
    if (valueCount() === 0) return;
    const box = svg.getBoundingClientRect();
    const fraction = (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT);
    cursor = Math.max(0, Math.min(valueCount() - 1, Math.round(fraction * (valueCount() - 1))));
    draw();
  };
  const hideCursor = () => { cursor = null; draw(); };
  svg.addEventListener("pointermove", moveCursor);
  svg.addEventListener("pointerleave", hideCursor);
  svg.addEventListener("blur", hideCursor);
  svg.addEventListener("keydown", (event) => {
    const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!offset || valueCount() === 0) return;
    event.preventDefault();
    cursor = Math.max(0, Math.min(valueCount() - 1, (cursor ?? valueCount() - 1) + offset));
    draw();
    svg.setAttribute("aria-label", `${title}: ${timeLabel.textContent}, ${legendEntries.map((entry, index) => `${curveOptions[index].name} ${entry.value.textContent}`).join(", ")}`);
  });

  new ResizeObserver(() => { if (svg.clientWidth !== width) draw(); }).observe(svg);

  return { element, update: (newCurves, seconds) => { curves = newCurves; stepSeconds = seconds; draw(); } };
}

// Returns the upper end of the axis: a round number with a round half. A few values far above all others, such as those
// of a burst, do not flatten the rest. The small terms tolerate rounding errors of the logarithm.
export function axisLimit(curves, topMin) {
  const highest = Math.max(topMin, ...curves.map((values) => {
    const sorted = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
    if (sorted.length === 0) return 0;
    const [max, typical] = [sorted[sorted.length - 1], sorted[Math.floor((sorted.length - 1) * TYPICAL_SHARE)]];
    return typical > 0 && max > OUTLIER_FACTOR * typical ? typical * HEADROOM : max;
  }));
  const unit = 10 ** Math.floor(Math.log10(highest) + 1e-9);
  return [1, 2, 4, 6, 8, 10].map((factor) => factor * unit).find((limit) => limit >= highest * (1 - 1e-9));
}

// Returns the runs of values without a gap, as pairs of index and value.
function splitAtGaps(values) {
  const allRuns = [];
  let run = [];
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      if (run.length) allRuns.push(run);
      run = [];
    } else run.push([index, value]);
  });
  if (run.length) allRuns.push(run);
  return allRuns;
}
