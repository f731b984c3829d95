// The frame around the views: the open view, and the state of the mesh as a whole.

import { h, setText, rate, share, verdict } from "./dom.js";
import { onErrorChange, watch } from "./mesh.js";
import { admit, live } from "./live.js";
import * as views from "./views.js";

const TABS = [
  ["", "Topology", views.topology],
  ["services", "Services", views.services],
  ["routes", "Routes", views.routes],
  ["policies", "Policies", views.policies],
  ["rules", "Rules", views.rules],
  ["sidecars", "Sidecars", views.sidecars],
  ["findings", "Findings", views.findings],
  ["live", "Live", live],
  ["rejected", "Rejected", views.rejected],
  ["explain", "Explain", views.explain],
];

const main = document.getElementById("main");
const counts = new Map();
let open = null;

const tabs = TABS.map(([path, title]) => {
  const count = h("span", { class: "count" });
  counts.set(path, count);
  return h("a", { href: `#/${path}`, "data-path": path }, title, count);
});
document.getElementById("tabs").append(...tabs);

const errorChip = h("span", { class: "chip bad", hidden: true }, h("i", { class: "dot" }), "");

const formatCount = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function path() {
  const hash = location.hash.replace(/^#\/?/, "");
  try {
    return decodeURIComponent(hash);
  } catch {
    return "";
  }
}

function route() {
  const token = path().match(/^live\/([0-9A-Za-z_-]+)$/);
  if (token) admit(token[1]);
  const currentPath = path();
  open?.end();
  const service = currentPath.match(/^service\/([^/]+\/[^/]+)$/);
  const reason = currentPath.match(/^reason\/([a-z0-9-]+)$/);
  const [tab, title, make] = TABS.find(([tabPath]) => tabPath === currentPath) ?? TABS[0];
  const current = service ? "services" : reason ? null : tab;
  for (const link of tabs) {
    if (link.dataset.path === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  open = service ? views.service(service[1]) : reason ? views.reason(reason[1]) : make();
  document.title = `${service?.[1] ?? reason?.[1] ?? title} · Leno`;
  main.replaceChildren(open.element);
  scrollTo(0, 0);
}
addEventListener("hashchange", () => { route(); main.focus({ preventScroll: true }); });

const name = h("span", { class: "chip" });
const mode = h("span", { class: "chip accent" });
document.getElementById("mesh").append(name, mode);
const chip = () => h("span", { class: "chip", hidden: true }, h("i", { class: "dot" }), h("b"));
const [sidecars, requests, success] = [chip(), chip(), chip()];
const problems = h("a", { class: "chip bad", href: "#/findings", hidden: true }, h("i", { class: "dot" }), h("b"));
document.getElementById("health").append(requests, success, sidecars, problems, errorChip);

// The number of findings that are problems, as in `leno status`; null until known.
let problemCount = null;

// Announced by screen readers: the state, and only when it changes. Figures change all the time.
const announcement = document.getElementById("verdict");
const captions = { good: "requests succeed", warn: "some requests fail", bad: "requests fail", idle: "no requests" };

// While the control plane does not respond, the page shows nothing that looks healthy.
const banner = document.getElementById("stale");
let lastResponse = null;
onErrorChange((error) => {
  const isSilent = error?.silent === true;
  document.body.classList.toggle("stale", isSilent);
  errorChip.hidden = error === null;
  for (const part of [requests, success, sidecars]) part.hidden = isSilent || lastResponse === null;
  problems.hidden = isSilent || !problemCount;
  banner.hidden = !isSilent;
  if (error === null) return;
  setText(errorChip.lastChild, isSilent ? `The control plane does not respond: ${error.message}` : `The control plane reports: ${error.message}`);
  if (!isSilent) return;
  setText(announcement, "the control plane does not respond");
  setText(banner, lastResponse ? `The control plane does not respond. The page shows the data of ${lastResponse.toLocaleTimeString("en-GB")}.` : "The control plane does not respond. There is no data about the mesh yet.");
});

const setChip = (element, state, text) => {
  element.setAttribute("class", `chip ${state}`);
  setText(element.lastChild, text);
};

watch(["/status", "/traffic"], (status, traffic) => {
  lastResponse = new Date();
  for (const part of [requests, success, sidecars]) part.hidden = false;
  setText(name, status.trust_domain);
  setText(mode, `default policy ${status.default_policy}`);
  const healthy = status.proxies >= status.workloads && status.out_of_sync === 0 && status.rejecting === 0;
  setChip(sidecars, healthy ? "good" : "warn", `${status.proxies} of ${status.workloads} sidecars`);
  // A step from a service to a backend of its route is not a request of its own.
  const calls = traffic.edges.filter((edge) => edge.kind !== "route");
  const total = calls.reduce((sum, edge) => sum + edge.per_second, 0);
  const successful = calls.reduce((sum, edge) => sum + edge.per_second * (edge.success ?? 0), 0);
  setChip(requests, "", rate(total));
  const successRate = total > 0 ? successful / total : null;
  const state = verdict({ success: successRate });
  setChip(success, state === "idle" ? "" : state, `${share(successRate)} success`);
  const problemText = problemCount ? `, ${formatCount(problemCount, "problem")}` : "";
  setText(announcement, `${captions[state]}, ${healthy ? "all sidecars are up to date" : "not all sidecars are up to date"}${problemText}`);
  setText(counts.get("services"), `${status.services}`);
  setText(counts.get("sidecars"), `${status.proxies}`);
  const rejected = counts.get("rejected");
  rejected.setAttribute("class", status.rejected > 0 ? "count bad" : "count");
  setText(rejected, status.rejected > 0 ? `${status.rejected}` : "");
});

route();

// After the first requests of the view, which must not wait for this one.
watch(["/findings"], (findings) => {
  problemCount = findings.filter((finding) => finding.severity === "problem").length;
  problems.hidden = problemCount === 0;
  setText(problems.lastChild, formatCount(problemCount, "problem"));
  const count = counts.get("findings");
  count.setAttribute("class", problemCount > 0 ? "count bad" : "count");
  setText(count, findings.length > 0 ? `${findings.length}` : "");
});
