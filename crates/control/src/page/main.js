// The frame around the views: the open view, and the state of the mesh as a whole.

import { h, say, rate, share, verdict } from "./dom.js";
import { onTrouble, watch } from "./mesh.js";
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
  ["documents", "Documents", views.rejected],
  ["playground", "Playground", views.playground],
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

const trouble = h("span", { class: "chip bad", hidden: true }, h("i", { class: "dot" }), "");

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

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
  const wanted = path();
  open?.end();
  const service = wanted.match(/^service\/([^/]+\/[^/]+)$/);
  const reason = wanted.match(/^reason\/([a-z0-9-]+)$/);
  const [tab, title, make] = TABS.find(([known]) => known === wanted) ?? TABS[0];
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
document.getElementById("health").append(requests, success, sidecars, problems, trouble);

// The number of findings that are problems, as in `leno status`; null until known.
let found = null;

// Announced by screen readers: the state, and only when it changes. Figures change all the time.
const aloud = document.getElementById("verdict");
const words = { good: "requests succeed", warn: "some requests fail", bad: "requests fail", idle: "no requests" };

// While the control plane does not respond, the page shows nothing that looks healthy.
const banner = document.getElementById("stale");
let answered = null;
onTrouble((error) => {
  const silent = error?.silent === true;
  document.body.classList.toggle("stale", silent);
  trouble.hidden = error === null;
  for (const part of [requests, success, sidecars]) part.hidden = silent || answered === null;
  problems.hidden = silent || !found;
  banner.hidden = !silent;
  if (error === null) return;
  say(trouble.lastChild, silent ? `The control plane does not respond: ${error.message}` : `The control plane reports: ${error.message}`);
  if (!silent) return;
  say(aloud, "the control plane does not respond");
  say(banner, answered ? `The control plane does not respond. The page shows the data of ${answered.toLocaleTimeString("en-GB")}.` : "The control plane does not respond. There is no data about the mesh yet.");
});

const put = (element, state, text) => {
  element.setAttribute("class", `chip ${state}`);
  say(element.lastChild, text);
};

watch(["/status", "/traffic"], (status, traffic) => {
  answered = new Date();
  for (const part of [requests, success, sidecars]) part.hidden = false;
  say(name, status.trust_domain);
  say(mode, `default policy ${status.default_policy}`);
  const healthy = status.proxies >= status.workloads && status.out_of_sync === 0 && status.rejecting === 0;
  put(sidecars, healthy ? "good" : "warn", `${status.proxies} of ${status.workloads} sidecars`);
  // A step from a service to a backend of its route is not a request of its own.
  const calls = traffic.edges.filter((edge) => edge.kind !== "route");
  const total = calls.reduce((sum, edge) => sum + edge.per_second, 0);
  const fine = calls.reduce((sum, edge) => sum + edge.per_second * (edge.success ?? 0), 0);
  put(requests, "", rate(total));
  const whole = total > 0 ? fine / total : null;
  const state = verdict({ success: whole });
  put(success, state === "idle" ? "" : state, `${share(whole)} success`);
  const rest = found ? `, ${counted(found, "problem")}` : "";
  say(aloud, `${words[state]}, ${healthy ? "all sidecars are up to date" : "not all sidecars are up to date"}${rest}`);
  say(counts.get("services"), `${status.services}`);
  say(counts.get("sidecars"), `${status.proxies}`);
  const documents = counts.get("documents");
  documents.setAttribute("class", status.rejected > 0 ? "count bad" : "count");
  say(documents, status.rejected > 0 ? `${status.rejected}` : "");
});

route();

// After the first requests of the view, which must not wait for this one.
watch(["/findings"], (findings) => {
  found = findings.filter((finding) => finding.severity === "problem").length;
  problems.hidden = found === 0;
  say(problems.lastChild, counted(found, "problem"));
  const count = counts.get("findings");
  count.setAttribute("class", found > 0 ? "count bad" : "count");
  say(count, findings.length > 0 ? `${findings.length}` : "");
});
