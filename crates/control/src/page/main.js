// Draws the frame around the views: the tabs, the open view, and the state of the mesh as a whole.

import { h, setText, formatRate, formatShare, healthState } from "./dom.js";
import { onErrorChange, pollPaths } from "./mesh.js";
import { storeToken, live } from "./live.js";
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
const tabCounts = new Map();
let openView = null;

const tabs = TABS.map(([path, title]) => {
  const count = h("span", { class: "count" });
  tabCounts.set(path, count);
  return h("a", { href: `#/${path}`, "data-path": path }, title, count);
});
document.getElementById("tabs").append(...tabs);

const errorChip = h("span", { class: "chip bad", hidden: true }, h("i", { class: "dot" }), "");

const formatCount = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// Returns the path of the view in the fragment of the URL, such as service/NAMESPACE/NAME.
function viewPath() {
  const hash = location.hash.replace(/^#\/?/, "");
  try {
    return decodeURIComponent(hash);
  } catch {
    // A malformed fragment opens the first tab.
    return "";
  }
}

// Replaces the open view by the view of the current path.
function showView() {
  const token = viewPath().match(/^live\/([0-9A-Za-z_-]+)$/);
  // This also removes the token from the fragment.
  if (token) storeToken(token[1]);
  const currentPath = viewPath();
  openView?.end();
  const service = currentPath.match(/^service\/([^/]+\/[^/]+)$/);
  const reason = currentPath.match(/^reason\/([a-z0-9-]+)$/);
  const [tab, title, createView] = TABS.find(([tabPath]) => tabPath === currentPath) ?? TABS[0];
  const currentTab = service ? "services" : reason ? null : tab;
  for (const link of tabs) {
    if (link.dataset.path === currentTab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  openView = service ? views.service(service[1]) : reason ? views.reason(reason[1]) : createView();
  document.title = `${service?.[1] ?? reason?.[1] ?? title} · Leno`;
  main.replaceChildren(openView.element);
  scrollTo(0, 0);
}
addEventListener("hashchange", () => { showView(); main.focus({ preventScroll: true }); });

const trustDomainChip = h("span", { class: "chip" });
const defaultPolicyChip = h("span", { class: "chip accent" });
document.getElementById("mesh").append(trustDomainChip, defaultPolicyChip);
const createChip = () => h("span", { class: "chip", hidden: true }, h("i", { class: "dot" }), h("b"));
const [sidecarsChip, requestsChip, successChip] = [createChip(), createChip(), createChip()];
const problemsChip = h("a", { class: "chip bad", href: "#/findings", hidden: true }, h("i", { class: "dot" }), h("b"));
document.getElementById("health").append(requestsChip, successChip, sidecarsChip, problemsChip, errorChip);

// The number of findings that are problems, as in `leno status`; null until known.
let problemCount = null;

// Screen readers announce the state of the mesh, but only when it changes: figures change all the time.
const announcement = document.getElementById("verdict");
const stateCaptions = { good: "requests succeed", warn: "some requests fail", bad: "requests fail", idle: "no requests" };

// While the control plane does not respond, the page shows nothing that looks healthy.
const banner = document.getElementById("stale");
let lastResponse = null;
onErrorChange((error) => {
  const isUnavailable = error?.isUnavailable === true;
  document.body.classList.toggle("stale", isUnavailable);
  errorChip.hidden = error === null;
  for (const chip of [requestsChip, successChip, sidecarsChip]) chip.hidden = isUnavailable || lastResponse === null;
  problemsChip.hidden = isUnavailable || !problemCount;
  banner.hidden = !isUnavailable;
  if (error === null) return;
  setText(errorChip.lastChild, isUnavailable ? `The control plane does not respond: ${error.message}` : `The control plane reports: ${error.message}`);
  if (!isUnavailable) return;
  setText(announcement, "the control plane does not respond");
  setText(banner, lastResponse ? `The control plane does not respond. The page shows the data of ${lastResponse.toLocaleTimeString("en-GB")}.` : "The control plane does not respond. There is no data about the mesh yet.");
});

const setChip = (element, state, text) => {
  element.setAttribute("class", `chip ${state}`);
  setText(element.lastChild, text);
};

pollPaths(["/status", "/traffic"], (status, traffic) => {
  lastResponse = new Date();
  for (const chip of [requestsChip, successChip, sidecarsChip]) chip.hidden = false;
  setText(trustDomainChip, status.trust_domain);
  setText(defaultPolicyChip, `default policy ${status.default_policy}`);
  const healthy = status.proxies >= status.workloads && status.out_of_sync === 0 && status.rejecting === 0;
  setChip(sidecarsChip, healthy ? "good" : "warn", `${status.proxies} of ${status.workloads} sidecars`);
  // A step from a service to a backend of its route is not a request of its own.
  const calls = traffic.edges.filter((edge) => edge.kind !== "route");
  const total = calls.reduce((sum, edge) => sum + edge.per_second, 0);
  const successful = calls.reduce((sum, edge) => sum + edge.per_second * (edge.success ?? 0), 0);
  setChip(requestsChip, "", formatRate(total));
  const successRate = total > 0 ? successful / total : null;
  const state = healthState({ success: successRate });
  setChip(successChip, state === "idle" ? "" : state, `${formatShare(successRate)} success`);
  const problemText = problemCount ? `, ${formatCount(problemCount, "problem")}` : "";
  setText(announcement, `${stateCaptions[state]}, ${healthy ? "all sidecars are up to date" : "not all sidecars are up to date"}${problemText}`);
  setText(tabCounts.get("services"), `${status.services}`);
  setText(tabCounts.get("sidecars"), `${status.proxies}`);
  const rejected = tabCounts.get("rejected");
  rejected.setAttribute("class", status.rejected > 0 ? "count bad" : "count");
  setText(rejected, status.rejected > 0 ? `${status.rejected}` : "");
});

showView();

// These requests start after the first requests of the open view, so that the view does not wait for them.
pollPaths(["/findings"], (findings) => {
  problemCount = findings.filter((finding) => finding.severity === "problem").length;
  problemsChip.hidden = problemCount === 0;
  setText(problemsChip.lastChild, formatCount(problemCount, "problem"));
  const count = tabCounts.get("findings");
  count.setAttribute("class", problemCount > 0 ? "count bad" : "count");
  setText(count, findings.length > 0 ? `${findings.length}` : "");
});
