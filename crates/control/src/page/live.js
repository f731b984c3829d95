// Live requests of one service, as sidecars report them, while the page shows them.

import { h, say, latency } from "./dom.js";
import { report, watch } from "./mesh.js";

const ROWS_MAX = 200;
const PER_SECOND = 20;
const LINE_MAX = 256 << 10;
const AGAIN_MS = 500;
const KEY = "leno-live";
const READY = "Choose a service. Bodies and query strings are never shown. Press Esc to stop.";
const NO_TOKEN = "Live requests need a token: open the address that `leno tap --page` prints. Add --data DIRECTORY if the mesh does not use the default data directory.";

// The token is in the fragment after #, which browsers send to no server; only this page stores it.
export function admit(token) {
  sessionStorage.setItem(KEY, token);
  history.replaceState(null, "", "#/live");
}

export function live() {
  const field = (label, attributes) => {
    const input = h("input", { type: "text", spellcheck: "false", autocomplete: "off", ...attributes });
    return { input, element: h("label", {}, h("span", {}, label), input) };
  };
  const service = field("Service", { list: "live-services", placeholder: "bookinfo/ratings", required: true });
  const path = field("Path prefix", { placeholder: "/ratings" });
  const status = field("Status", { placeholder: "5xx" });
  const from = field("Caller account", { placeholder: "bookinfo/reviews" });
  const names = h("datalist", { id: "live-services" });
  const button = h("button", { class: "primary" }, "Start");
  const note = h("p", { class: "note", role: "status" }, sessionStorage.getItem(KEY) ? READY : NO_TOKEN);
  const body = h("tbody");
  const columns = ["time", "sidecar", "direction", "method", "path", "status", "reason", "duration", "peer"];
  const head = h("tr", {}, ...columns.map((text) => h("th", { scope: "col" }, text)));
  const table = h("div", { class: "live", tabindex: 0, role: "region", "aria-label": "Live requests" }, h("table", { class: "plain" }, h("thead", {}, head), body));
  const form = h("form", { class: "card ask live-ask", submit: turn }, service.element, path.element, status.element, from.element, names, button);
  const element = h("div", { keydown: (event) => { if (event.key === "Escape") stop("Stopped."); } },
    h("div", { class: "head" }, h("h1", {}, "Live"), h("span", { class: "note" }, "requests as they end")), form, note, h("section", { class: "card" }, table));
  let tap = null;
  let waiting = [];
  // The displayed rows with the times of their requests, newest first.
  let rows = [];
  let seen = 0;
  let missed = 0;

  function turn(event) {
    event.preventDefault();
    if (tap) stop("Stopped.");
    else start();
  }

  function start() {
    const query = new URLSearchParams({ service: service.input.value.trim(), per_second: PER_SECOND });
    for (const [name, part] of [["path", path], ["status", status], ["from", from]]) {
      const value = part.input.value.trim();
      if (value) query.append(name, value);
    }
    tap = new AbortController();
    [seen, missed, waiting, rows] = [0, 0, [], []];
    body.replaceChildren();
    say(button, "Stop");
    say(note, "Waiting for requests.");
    follow(`/api/tap?${query.toString().replaceAll("+", "%20")}`, tap);
  }

  function stop(why) {
    if (!tap) return;
    tap.abort();
    tap = null;
    say(button, "Start");
    say(note, seen > 0 ? `${why} ${summary()}` : why);
  }

  const summary = () => `${seen} ${seen === 1 ? "request" : "requests"}${missed ? `, and ${missed} more over the limit` : ""}.`;

  // The control plane ends a response after two minutes: the page sends the request again until the user stops.
  async function follow(address, mine) {
    while (tap === mine) {
      let problem = null;
      try {
        problem = await read(address, mine);
      } catch (error) {
        if (tap === mine) report(error);
      }
      if (tap !== mine) return;
      if (problem) return stop(problem);
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }

  async function read(address, mine) {
    const token = sessionStorage.getItem(KEY);
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    const answer = await fetch(address, { credentials: "same-origin", headers, signal: mine.signal });
    if (!answer.ok) return (await answer.text()).trim() || `${answer.status}`;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || tap !== mine) return null;
      rest += value;
      const lines = rest.split("\n");
      rest = lines.pop();
      if (rest.length > LINE_MAX) return "The control plane sent a line that is not a request.";
      // A blank line is a keepalive.
      for (const line of lines) if (line) take(JSON.parse(line));
    }
  }

  function take(record) {
    if (record.dropped) {
      missed += record.dropped;
      return;
    }
    seen += 1;
    if (waiting.length === 0) requestAnimationFrame(draw);
    waiting.push(record);
    if (waiting.length > ROWS_MAX) waiting.shift();
  }

  // Requests arrive when they end, from several sidecars: rows are ordered by start time. Rows beyond the limit
  // are dropped.
  function draw() {
    const fresh = waiting.map((record) => ({ time: instant(record.start_time), row: row(record) })).reverse();
    waiting = [];
    rows = [...fresh, ...rows].sort((one, other) => other.time - one.time).slice(0, ROWS_MAX);
    body.replaceChildren(...rows.map((one) => one.row));
    // A record that was in transit when the user stopped must not replace the note.
    if (tap) say(note, summary());
  }

  // Microseconds since 1970; a Date has milliseconds only.
  const instant = (time) => {
    const fraction = /\.(\d+)/.exec(`${time}`)?.[1] ?? "";
    return Math.floor(Date.parse(time) / 1000) * 1e6 + Number(`0.${fraction || 0}`) * 1e6;
  };
  const text = (value) => (value === null || value === undefined ? "" : `${value}`);
  function row(record) {
    const bad = record.response_code_details || record.response_code >= 500;
    const cells = [
      text(record.start_time).slice(11, 23), record.workload, record.direction, record.method, record.path,
      record.response_code, record.response_code_details, latency(record.duration),
      record.direction === "inbound" ? record.peer : record.upstream_host,
    ];
    return h("tr", { class: bad ? "bad-ink" : "" }, ...cells.map((value) => h("td", { class: "mono", title: text(value) }, text(value))));
  }

  const unwatch = watch(["/services"], (services) => {
    if (names.childElementCount !== services.length) names.replaceChildren(...services.map((one) => h("option", { value: one.name })));
  });
  return { element, end: () => { unwatch(); stop(""); } };
}
