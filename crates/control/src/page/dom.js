// Creates DOM elements, and formats figures as text. Text is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

// Creates an HTML element, like the function `h` of hyperscript. Attributes with a function as value are event listeners.
export function h(tag, attributes = {}, ...children) {
  return fillElement(document.createElement(tag), attributes, children);
}

// Creates an SVG element.
export function s(tag, attributes = {}, ...children) {
  return fillElement(document.createElementNS(SVG, tag), attributes, children);
}

function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Writes only differences, so that nothing flickers and no screen reader is interrupted.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// The limits of the following functions avoid numbers with an extra digit after rounding, such as 100.0 instead of 100.
export function formatRate(perSecond) {
  if (!perSecond) return "0/s";
  if (perSecond < 0.095) return `${perSecond.toFixed(2)}/s`;
  return perSecond < 99.95 ? `${perSecond.toFixed(1)}/s` : `${Math.round(perSecond)}/s`;
}

// Rounds down, so that only a rate without failures is 100 %.
export function formatShare(success) {
  if (success === null || success === undefined) return "–";
  return success >= 1 ? "100 %" : `${(Math.floor(success * 1e4) / 1e2).toFixed(2)} %`;
}

export function formatLatency(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 9.995) return `${ms.toFixed(2)} ms`;
  if (ms < 99.95) return `${ms.toFixed(1)} ms`;
  return ms < 999.5 ? `${Math.round(ms)} ms` : `${(ms / 1e3).toFixed(2)} s`;
}

export function formatCpu(cores) {
  const milli = cores * 1e3;
  return `${milli > 0 && milli < 9.95 ? milli.toFixed(1) : Math.round(milli)} mCPU`;
}

export function formatMemory(kib) {
  return `${(kib / 1024).toFixed(1)} MiB`;
}

// Returns the two largest units of a duration, such as 2h5m.
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0s";
  let remaining = Math.floor(seconds);
  let text = "";
  for (const [unit, size] of units.slice(first, first + 2)) {
    const count = Math.floor(remaining / size);
    remaining -= count * size;
    if (count > 0) text += count + unit;
  }
  return text;
}

// Returns the CSS class for a success rate: good, warn or bad, or idle without requests. The limits are those of
// `leno status`.
export function healthState(rates) {
  if (!rates || rates.success === null || rates.success === undefined) return "idle";
  return rates.success < 0.95 ? "bad" : rates.success < 0.99 ? "warn" : "good";
}

// Draws the numbers of the steps as a small area without axes, 100 units wide and 24 high.
export function sparkline(steps) {
  // The last step is incomplete.
  const numbers = steps.slice(0, -1);
  const max = Math.max(1, ...numbers);
  const x = (index) => (index / Math.max(1, numbers.length - 1)) * 100;
  const points = numbers.map((number, index) => `${x(index).toFixed(1)} ${(22 - (number / max) * 20).toFixed(1)}`);
  // Without steps the area is empty.
  const path = s("path", { d: `M0 23 ${points.map((point) => `L${point} `).join("")}L100 23 Z` });
  return s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, path);
}
