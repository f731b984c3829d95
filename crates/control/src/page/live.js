// Shows live requests of one service, as sidecars report them.

import { h, setText, formatLatency } from "./dom.js";
import { pollPaths, reportError } from "./mesh.js";

const MAX_ROWS = 200;
const RECORDS_PER_SECOND = 20;
const MAX_LINE_LENGTH = 256 << 10;
const RETRY_MS = 500;
const TOKEN_KEY = "leno-live";
const READY = "Choose a service. Bodies and query strings are never shown. Press Esc to stop.";
const TOKEN_REQUIRED = "Live requests need a token: open the address that `leno tap --page` prints. Add --data DIRECTORY if the mesh does not use the default data directory.";

// The token is in the fragment after #, which browsers send to no server; only this page stores it.
export function storeToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
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
  const note = h("p", { class: "note", role: "status" }, sessionStorage.getItem(TOKEN_KEY) ? READY : TOKEN_REQUIRED);
  const body = h("tbody");
  const columns = ["time", "sidecar", "direction", "method", "path", "status", "reason", "duration", "peer"];
  const head = h("tr", {}, ...columns.map((text) => h("th", { scope: "col" }, text)));
  const table = h("div", { class: "live", tabindex: 0, role: "region", "aria-label": "Live requests" }, h("table", { class: "plain" }, h("thead", {}, head), body));
  const form = h("form", { class: "card ask live-ask", submit: toggle }, service.element, path.element, status.element, from.element, names, button);
  const element = h("div", { keydown: (event) => { if (event.key === "Escape") stop("Stopped."); } },
    h("div", { class: "head" }, h("h1", {}, "Live"), h("span", { class: "note" }, "requests as they end")), form, note, h("section", { class: "card" }, table));
  // The controller that aborts the running tap; null while none runs.
  let tap = null;
  let pendingRecords = [];
  // The displayed rows with the times of their requests, newest first.
  let rows = [];
  let receivedCount = 0;
  let droppedCount = 0;

  function toggle(event) {
    event.preventDefault();
    if (tap) stop("Stopped.");
    else start();
  }

  function start() {
    const query = new URLSearchParams({ service: service.input.value.trim(), per_second: RECORDS_PER_SECOND });
    for (const [name, filter] of [["path", path], ["status", status], ["from", from]]) {
      const value = filter.input.value.trim();
      if (value) query.append(name, value);
    }
    tap = new AbortController();
    [receivedCount, droppedCount, pendingRecords, rows] = [0, 0, [], []];
    body.replaceChildren();
    setText(button, "Stop");
    setText(note, "Waiting for requests.");
    follow(`/api/tap?${query.toString().replaceAll("+", "%20")}`, tap);
  }

  function stop(message) {
    if (!tap) return;
    tap.abort();
    tap = null;
    setText(button, "Start");
    setText(note, receivedCount > 0 ? `${message} ${summary()}` : message);
  }

  const summary = () => `${receivedCount} ${receivedCount === 1 ? "request" : "requests"}${droppedCount ? `, and ${droppedCount} more over the limit` : ""}.`;

  // Follows the tap until the user stops it. The control plane ends a response after two minutes, and the page then
  // sends the request again.
  async function follow(address, currentTap) {
    while (tap === currentTap) {
      let problem = null;
      try {
        problem = await readRecords(address, currentTap);
      } catch (error) {
        if (tap === currentTap) reportError(error);
      }
      if (tap !== currentTap) return;
      if (problem) return stop(problem);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  // Reads the records of one response. Returns the problem if the control plane rejects the request, otherwise null.
  async function readRecords(address, currentTap) {
    const token = sessionStorage.getItem(TOKEN_KEY);
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    const response = await fetch(address, { credentials: "same-origin", headers, signal: currentTap.signal });
    if (!response.ok) return (await response.text()).trim() || `${response.status}`;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let partialLine = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || tap !== currentTap) return null;
      partialLine += value;
      const lines = partialLine.split("\n");
      partialLine = lines.pop();
      if (partialLine.length > MAX_LINE_LENGTH) return "The control plane sent a line that is not a request.";
      // A blank line is a keepalive.
      for (const line of lines) if (line) addRecord(JSON.parse(line));
    }
  }

  function addRecord(record) {
    if (record.dropped) {
      droppedCount += record.dropped;
      return;
    }
    receivedCount += 1;
    if (pendingRecords.length === 0) requestAnimationFrame(drawRows);
    pendingRecords.push(record);
    if (pendingRecords.length > MAX_ROWS) pendingRecords.shift();
  }

  // Requests arrive when they end, from several sidecars: rows are ordered by start time. Rows beyond the limit
  // are dropped.
  function drawRows() {
    const newRows = pendingRecords.map((record) => ({ time: toMicroseconds(record.start_time), element: createRow(record) })).reverse();
    pendingRecords = [];
    rows = [...newRows, ...rows].sort((a, b) => b.time - a.time).slice(0, MAX_ROWS);
    body.replaceChildren(...rows.map((row) => row.element));
    // A record that arrives after the user has stopped must not replace the note.
    if (tap) setText(note, summary());
  }

  // Microseconds since 1970; a Date has milliseconds only.
  const toMicroseconds = (time) => {
    const fraction = /\.(\d+)/.exec(`${time}`)?.[1] ?? "";
    return Math.floor(Date.parse(time) / 1000) * 1e6 + Number(`0.${fraction || 0}`) * 1e6;
  };
  const text = (value) => (value === null || value === undefined ? "" : `${value}`);
  function createRow(record) {
    const failed = record.response_code_details || record.response_code >= 500;
    const cells = [
      // The time of day with milliseconds, from an RFC 3339 time.
      text(record.start_time).slice(11, 23), record.workload, record.direction, record.method, record.path,
      record.response_code, record.response_code_details, formatLatency(record.duration),
      record.direction === "inbound" ? record.peer : record.upstream_host,
    ];
    return h("tr", { class: failed ? "bad-ink" : "" }, ...cells.map((value) => h("td", { class: "mono", title: text(value) }, text(value))));
  }

  const stopPolling = pollPaths(["/services"], (services) => {
    if (names.childElementCount !== services.length) names.replaceChildren(...services.map((service) => h("option", { value: service.name })));
  });
  return { element, end: () => { stopPolling(); stop(""); } };
}
