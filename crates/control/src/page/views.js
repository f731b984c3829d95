// Creates the views. Each view creates its elements once, and updates them while it is open.

import { h, setText, formatRate, formatShare, formatLatency, formatCpu, formatMemory, formatDuration, healthState, sparkline } from "./dom.js";
import { graph } from "./graph.js";
import { list } from "./list.js";
import { plot } from "./plot.js";
import { pollPaths, reportError } from "./mesh.js";

const MAX_NODES = 80;

const serviceLink = (service, text = service) => h("a", { href: `#/service/${service}` }, text);
const joinNames = (items) => items.join(", ") || "–";
const coloredText = (state, text) => h("span", { class: `${state}-ink` }, text);

// An open view: the element for the page, and the function that ends it. It shows that it is loading until the
// first responses arrive: an empty view would look like an empty mesh.
function openView(element, paths, show, end) {
  const loading = h("p", { class: "card empty loading" }, "Loading…");
  element.classList.add("is-loading");
  element.append(loading);
  const stop = pollPaths(paths, (...responses) => {
    element.classList.remove("is-loading");
    loading.remove();
    show(...responses);
  });
  return { element, end: () => { stop(); end?.(); } };
}

const NO_RATES = { per_second: 0, success: null, p50_ms: null, p99_ms: null, requests: 0, failed: 0, recent: [] };

export function topology() {
  const callGraph = graph({ open: (node) => { location.hash = node.kind === "service" ? `#/service/${node.id}` : "#/sidecars"; } });
  const hiddenNote = h("span", { class: "note" });
  const empty = h("p", { class: "empty" }, "No service has received requests yet. Requests appear here within a few seconds.");
  const swatch = (state, text) => h("span", {}, h("i", { class: `swatch ${state}` }), text);
  const legend = h("div", { class: "legend" }, swatch("good", "99 % or more succeed"), swatch("warn", "95 to 99 %"), swatch("bad", "below 95 %: failing"), swatch("", "idle"), swatch("route", "forwarded by a route"), h("span", {}, "Lock: mutual TLS, both peers verified"));
  const card = h("section", { class: "card" }, callGraph.element, empty, legend);
  const element = h("div", {}, h("div", { class: "head" }, h("h1", {}, "Topology"), hiddenNote), card);
  return openView(element, ["/traffic", "/services"], (traffic, services) => {
    const { nodes, edges, hiddenCount } = visibleGraph(traffic, services);
    empty.hidden = nodes.length > 0;
    callGraph.element.hidden = nodes.length === 0;
    setText(hiddenNote, hiddenCount > 0 ? `the ${MAX_NODES} busiest; ${hiddenCount} more under Services` : "");
    if (nodes.length > 0) callGraph.update(nodes, edges);
  });
}

// Returns the services and callers of the call graph, at most MAX_NODES. The healthy services with the fewest requests
// are left out first.
export function visibleGraph(traffic, services) {
  const rates = new Map(traffic.services.map((service) => [service.name, service]));
  const nodes = new Map();
  const addNode = (kind, name) => {
    const id = kind === "workload" ? `workload ${name}` : name;
    if (!nodes.has(id)) {
      const [namespace, shortName] = name.split("/");
      nodes.set(id, { id, kind, name: shortName, namespace, rates: kind === "workload" ? NO_RATES : rates.get(name) ?? NO_RATES });
    }
    return id;
  };
  let edges = traffic.edges.map((edge) => ({
    ...edge,
    from: addNode(edge.kind === "workload" ? "workload" : "service", edge.from),
    to: addNode("service", edge.to),
    rates: edge,
  }));
  // Services without callers are included while the whole graph fits.
  if (services.length <= MAX_NODES / 2) for (const service of services) addNode("service", service.name);
  // Failing services come first, then workloads without a service, then services by rate.
  const sortWeight = (node) => (healthState(node.rates) === "bad" ? 1e9 : 0) + (node.rates.per_second ?? 0) + (node.kind === "workload" ? 1e6 : 0);
  const sortedNodes = [...nodes.values()].sort((a, b) => sortWeight(b) - sortWeight(a) || a.id.localeCompare(b.id, "en"));
  const hiddenCount = Math.max(0, sortedNodes.length - MAX_NODES);
  const visibleNodes = sortedNodes.slice(0, MAX_NODES).sort((a, b) => a.id.localeCompare(b.id, "en"));
  const visibleIds = new Set(visibleNodes.map((node) => node.id));
  edges = edges.filter((edge) => visibleIds.has(edge.from) && visibleIds.has(edge.to));
  return { nodes: visibleNodes, edges, hiddenCount };
}

// Without requests, the success rate is sorted above 100 %.
const rateColumns = [
  { name: "Rate", width: "90px", number: true, value: (row) => row.rates.per_second, show: (row) => formatRate(row.rates.per_second) },
  { name: "Success", width: "90px", number: true, value: (row) => row.rates.success ?? 2, show: (row) => coloredText(healthState(row.rates), formatShare(row.rates.success)) },
  { name: "p50", width: "84px", number: true, value: (row) => row.rates.p50_ms, show: (row) => formatLatency(row.rates.p50_ms) },
  { name: "p99", width: "84px", number: true, value: (row) => row.rates.p99_ms, show: (row) => formatLatency(row.rates.p99_ms) },
  { name: "Last minutes", width: "120px", show: (row) => sparkline(row.rates.recent) },
];

export function services() {
  const table = list({
    label: "Services",
    columns: [
      { name: "Service", width: "minmax(180px, 2fr)", value: (row) => row.name, show: (row) => serviceLink(row.name) },
      ...rateColumns,
      { name: "Endpoints", width: "90px", number: true, value: (row) => row.endpoints, show: (row) => `${row.endpoints}` },
      { name: "Routes", width: "minmax(120px, 1fr)", value: (row) => joinNames(row.routes), show: (row) => joinNames(row.routes) },
    ],
    rowState: (row) => healthState(row.rates),
    sort: { column: 1, down: true },
  });
  return openView(table.element, ["/services", "/traffic"], (services, traffic) => {
    const rates = new Map(traffic.services.map((service) => [service.name, service]));
    table.update(services.map((service) => ({
      name: service.name,
      rates: rates.get(service.name) ?? NO_RATES,
      endpoints: Math.max(0, ...service.ports.map((port) => port.endpoints.length)),
      routes: service.routes,
    })));
  }, table.end);
}

// Matches of the rules of a route or policy within the last hour.
const matchCountsOf = (traffic, object) => (traffic.rules ?? []).filter((rule) => rule.kind === object.kind && rule.name === object.name);
const sumMatches = (rules) => rules.reduce((sum, rule) => sum + rule.matches_1h, 0);
const matchCounts = {
  name: "Matches, 1 h",
  width: "96px",
  number: true,
  value: (row) => sumMatches(row.matchCounts),
  show: (row) => h("span", { title: row.matchCounts.map((rule) => `${rule.rule ? `rule ${rule.rule}: ` : ""}${rule.matches_1h}`).join("\n") }, `${sumMatches(row.matchCounts)}`),
};

// Returns the text of a rule, if its object has one.
function ruleText(rule, routes, policies) {
  // Objects of these kinds have counts of rules only.
  if (["TagRoute", "SermantRouteRule", "Lane"].includes(rule.kind)) return "";
  const object = [...routes, ...policies].find((object) => object.kind === rule.kind && object.name === rule.name);
  const texts = object?.rule_texts ?? (Array.isArray(object?.rules) ? object.rules : []);
  // The rule of an object with a single one has an empty name.
  return texts[Number(rule.rule || 0)] ?? "";
}

export function rules() {
  const ruleName = (row) => (/^\d+$/.test(row.rule) ? `rules[${row.rule}]` : row.rule);
  const table = list({
    label: "Rules",
    hint: "rules that matched a request within the last hour",
    columns: [
      { name: "Kind", width: "150px", value: (row) => row.kind, show: (row) => row.kind },
      { name: "Object", width: "minmax(160px, 1fr)", value: (row) => row.name, show: (row) => row.name },
      { name: "Rule", width: "minmax(90px, 0.6fr)", value: ruleName, show: ruleName },
      { name: "Meaning", width: "minmax(200px, 2fr)", value: (row) => row.meaning, show: (row) => row.meaning || "–" },
      { name: "Matches, 1 h", width: "100px", number: true, value: (row) => row.matches_1h, show: (row) => `${row.matches_1h}` },
      { name: "Matches so far", width: "100px", number: true, value: (row) => row.matches, show: (row) => `${row.matches}` },
    ],
    sort: { column: 4, down: true },
  });
  return openView(table.element, ["/traffic", "/routes", "/policies"], (traffic, routes, policies) => {
    table.update((traffic.rules ?? []).map((rule) => ({ ...rule, meaning: ruleText(rule, routes, policies) })));
  }, table.end);
}

export function routes() {
  const table = list({
    label: "Routes",
    columns: [
      { name: "Route", width: "minmax(180px, 1.4fr)", value: (row) => row.name, show: (row) => row.name },
      { name: "Kind", width: "110px", value: (row) => row.kind, show: (row) => row.kind },
      { name: "Attached to", width: "minmax(160px, 1fr)", value: (row) => joinNames(row.parents), show: (row) => joinNames(row.parents) },
      { name: "Backends", width: "minmax(200px, 1.6fr)", value: (row) => joinNames(row.backends), show: (row) => joinNames(row.backends) },
      ...rateColumns.slice(0, 2),
      { name: "Requests", width: "90px", number: true, value: (row) => row.rates.requests, show: (row) => `${row.rates.requests}` },
      matchCounts,
      { name: "Status", width: "minmax(120px, 1fr)", value: (row) => joinNames(row.problems), show: (row) => showProblems(row.problems) },
    ],
    rowState: (row) => (row.problems.length ? "bad" : healthState(row.rates)),
  });
  return openView(table.element, ["/routes", "/traffic"], (routes, traffic) => {
    const rates = new Map(traffic.routes.map((route) => [route.name, route]));
    table.update(routes.map((route) => ({ ...route, rates: rates.get(route.name) ?? NO_RATES, matchCounts: matchCountsOf(traffic, route) })));
  }, table.end);
}

const showProblems = (problems) => (problems.length ? h("span", { class: "bad-ink", title: problems.join("\n") }, problems.join("; ")) : coloredText("good", "in force"));

export function policies() {
  const table = list({
    label: "Policies",
    columns: [
      { name: "Policy", width: "minmax(180px, 1fr)", value: (row) => row.name, show: (row) => row.name },
      { name: "Kind", width: "120px", value: (row) => row.kind, show: (row) => row.kind },
      { name: "For", width: "minmax(160px, 1fr)", value: (row) => row.destinations.join(", "), show: (row) => row.destinations.join(", ") },
      { name: "Allows", width: "minmax(200px, 1.4fr)", value: (row) => joinNames(row.sources), show: (row) => h("span", { title: row.sources.join("\n") }, joinNames(row.sources)) },
      { name: "Rules", width: "minmax(200px, 1.4fr)", value: (row) => joinNames(row.rules), show: (row) => h("span", { title: row.rules.join("\n") }, joinNames(row.rules)) },
      { name: "Status", width: "minmax(140px, 1fr)", value: (row) => joinNames(row.problems), show: (row) => (row.problems.length || row.in_force ? showProblems(row.problems) : coloredText("idle", `not in force${row.reason ? `: ${row.reason}` : ""}`)) },
      matchCounts,
    ],
    rowState: (row) => (row.problems.length ? "bad" : ""),
  });
  return openView(table.element, ["/policies", "/traffic"], (policies, traffic) => table.update(policies.map((policy) => ({ ...policy, matchCounts: matchCountsOf(traffic, policy) }))), table.end);
}

const expiry = (certificate) => {
  if (!certificate) return "–";
  return certificate.valid_for_seconds === 0 ? coloredText("bad", "expired") : `in ${formatDuration(certificate.valid_for_seconds)}`;
};

export function sidecars() {
  const table = list({
    label: "Sidecars",
    columns: [
      { name: "Workload", width: "minmax(180px, 1.4fr)", value: (row) => row.name, show: (row) => row.name },
      { name: "State", width: "minmax(130px, 1fr)", value: (row) => row.summary, show: (row) => coloredText(row.state, row.summary) },
      { name: "In", width: "84px", number: true, value: (row) => row.usage?.inbound_per_second ?? 0, show: (row) => formatRate(row.usage?.inbound_per_second) },
      { name: "Out", width: "84px", number: true, value: (row) => row.usage?.outbound_per_second ?? 0, show: (row) => formatRate(row.usage?.outbound_per_second) },
      { name: "CPU", width: "96px", number: true, value: (row) => row.usage?.cpu_cores ?? 0, show: (row) => formatCpu(row.usage?.cpu_cores ?? 0) },
      { name: "Memory", width: "90px", number: true, value: (row) => row.usage?.memory_kib ?? 0, show: (row) => (row.usage ? formatMemory(row.usage.memory_kib) : "–") },
      { name: "Connected", width: "96px", number: true, value: (row) => row.proxy?.connected_seconds ?? -1, show: (row) => formatDuration(row.proxy?.connected_seconds) },
      { name: "Issued", width: "96px", number: true, value: (row) => row.certificate?.age_seconds ?? -1, show: (row) => (row.certificate ? `${formatDuration(row.certificate.age_seconds)} ago` : "–") },
      { name: "Expires", width: "96px", number: true, value: (row) => row.certificate?.valid_for_seconds ?? -1, show: (row) => expiry(row.certificate) },
      { name: "Services", width: "minmax(120px, 1fr)", value: (row) => joinNames(row.services), show: (row) => joinNames(row.services) },
      { name: "Version", width: "80px", value: (row) => row.proxy?.version ?? "", show: (row) => row.proxy?.version ?? "–" },
    ],
    rowState: (row) => row.state,
  });
  return openView(table.element, ["/workloads", "/proxies", "/certificates", "/traffic"], (workloads, proxies, certificates, traffic) => {
    const byWorkload = (items) => new Map(items.map((item) => [item.workload, item]));
    const [proxy, certificate, usage] = [byWorkload(proxies), byWorkload(certificates), byWorkload(traffic.sidecars)];
    table.update(workloads.map((workload) => {
      const connected = proxy.get(workload.name);
      // Like `leno status`, tolerates the seconds in which a sidecar applies a change.
      const isOutOfSync = connected && (connected.out_of_sync_seconds ?? 0) > 10;
      const [state, summary] = !connected ? [workload.sidecar === "other-replica" ? "good" : "bad", workload.sidecar]
        : connected.rejected > 0 ? ["bad", `rejects ${connected.rejected}`]
          : isOutOfSync ? ["warn", `out of sync for ${formatDuration(connected.out_of_sync_seconds)}`] : ["good", "current"];
      return { name: workload.name, services: workload.services, proxy: connected, state, summary, usage: usage.get(workload.name), certificate: certificate.get(workload.name) };
    }));
  }, table.end);
}

export function findings() {
  const cards = h("div");
  const element = h("div", {}, h("div", { class: "head" }, h("h1", {}, "Findings"), h("span", { class: "note" }, "problems and notices of the mesh, as leno status prints them")), cards);
  const card = (finding) => h("section", { class: `card finding ${finding.severity === "problem" ? "" : "warn"}` }, h("h2", {}, finding.message), h("p", {}, finding.hint));
  return openView(element, ["/findings"], (findings) => {
    cards.replaceChildren(...(findings.length ? findings.map(card) : [h("p", { class: "card empty" }, "There are no problems and no notices.")]));
  });
}

export function rejected() {
  const findings = h("div");
  const element = h("div", {}, h("div", { class: "head" }, h("h1", {}, "Rejected"), h("span", { class: "note" }, "rejected documents and warnings")), findings);
  const finding = (kind, item) => {
    const location = [item.file, item.line, item.column].filter(Boolean).join(":");
    const object = [item.kind, [item.namespace, item.name].filter(Boolean).join("/")].filter(Boolean).join(" ");
    return h("section", { class: `card finding ${kind}` }, h("h2", {}, [object, item.field].filter(Boolean).join(": ") || location), h("p", { class: "mono" }, location), h("p", {}, item.problem), h("p", {}, item.hint));
  };
  return openView(element, ["/rejected"], (summary) => {
    const cards = [...summary.rejected.map((item) => finding("", item)), ...summary.warnings.map((item) => finding("warn", item))];
    if (summary.trust_domain) cards.unshift(finding("", { kind: "MeshConfig", problem: summary.trust_domain }));
    findings.replaceChildren(...(cards.length ? cards : [h("p", { class: "card empty" }, "No document is rejected, and there are no warnings.")]));
  });
}

export function service(name) {
  let showsHour = false;
  const createTile = (label) => {
    const value = h("div", { class: "value" }, "–");
    return { value, element: h("div", { class: "card tile" }, h("div", { class: "what" }, label), value) };
  };
  const [perSecond, success, p50, p99, total] = ["Requests", "Success", "Latency p50", "Latency p99", "Requests so far"].map(createTile);
  const plots = [
    plot({ title: "Traffic", curves: [{ name: "requests", color: "accent", area: true }], format: formatRate, topMin: 0.2 }),
    plot({ title: "Latency", curves: [{ name: "p99", color: "warn" }, { name: "p50", color: "accent" }], format: formatLatency, topMin: 0.2 }),
    plot({ title: "Errors", curves: [{ name: "failed", color: "bad", area: true }], format: formatRate, topMin: 0.2 }),
  ];
  const rangeButton = (isHour, text) => h("button", { type: "button", "aria-pressed": String(showsHour === isHour), click: () => { showsHour = isHour; buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(showsHour === (index === 1)))); if (lastResponses) show(...lastResponses); } }, text);
  const buttons = [rangeButton(false, "6 minutes"), rangeButton(true, "1 hour")];
  const chip = h("span", { class: "chip" });
  const callers = h("tbody");
  const callees = h("tbody");
  const reasons = h("tbody");
  const rejections = h("tbody");
  const endpoints = h("tbody");
  const card = (title, names, body) => h("section", { class: "card" }, h("header", {}, h("h2", {}, title)), h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ...names.map((text, index) => h("th", { class: index > 0 ? "number" : "", scope: "col" }, text)))), body));
  const routedRows = h("tbody");
  const routedCard = card("Its routes send requests to", ["service", "rate", "success", "p99"], routedRows);
  const missingNote = h("p", { class: "card empty", hidden: true }, "There is no such service. ", h("a", { href: "#/services" }, "All services"));
  const element = h("div", {},
    h("div", { class: "head" }, h("h1", {}, name), chip, h("span", { class: "space" }), h("div", { class: "switch", role: "group", "aria-label": "Time range" }, ...buttons)),
    h("div", { class: "tiles" }, ...[perSecond, success, p50, p99, total].map((tile) => tile.element)),
    h("div", { class: "grid" }, ...plots.map((view) => view.element)),
    h("div", { class: "grid" }, card("Called by", ["caller", "rate", "success", "p99"], callers), card("Calls", ["service", "rate", "success", "p99"], callees), routedCard),
    h("div", { class: "grid" }, card("Endpoints", ["workload", "address"], endpoints), card("Reasons of failures, since the start", ["reason", "requests"], reasons)),
    h("div", { class: "grid" }, card("Rejected by the mesh, last half minute", ["reason", "share", "requests", "sidecars", "policies"], rejections)),
    missingNote);
  let lastResponses = null;
  const emptyRow = (text, columns) => h("tr", {}, h("td", { class: "note", colspan: columns }, text));
  const cells = (first, ...values) => h("tr", {}, h("td", {}, first), ...values.map((text) => h("td", { class: "number" }, text)));
  function show(history, traffic, services, explanations) {
    // The buttons of the time range show these responses again.
    lastResponses = [history, traffic, services, explanations];
    const currentService = services.find((service) => service.name === name);
    const isKnown = Boolean(currentService || history);
    for (const section of element.children) section.hidden = isKnown ? section === missingNote : !(section === missingNote || section.classList.contains("head"));
    chip.hidden = !isKnown;
    if (!isKnown) return;
    const rates = history?.rates ?? NO_RATES;
    const state = healthState(rates);
    chip.setAttribute("class", `chip ${state === "idle" ? "" : state}`);
    setText(chip, { good: "healthy", warn: "some fail", bad: "failing", idle: "no requests" }[state]);
    setText(perSecond.value, formatRate(rates.per_second));
    setText(success.value, formatShare(rates.success));
    success.value.setAttribute("class", `value ${state === "idle" ? "" : `${state}-ink`}`);
    setText(p50.value, formatLatency(rates.p50_ms));
    setText(p99.value, formatLatency(rates.p99_ms));
    setText(total.value, `${rates.requests}`);
    // The plots of the last minutes come first, then those of the last hour.
    const steps = history?.plots[showsHour ? 1 : 0];
    if (steps) {
      const seconds = steps.step_seconds;
      // The last step is incomplete: it would look like a sudden drop.
      const completeSteps = (values) => values.slice(0, -1);
      const perStep = (counts) => completeSteps(counts).map((count) => count / seconds);
      plots[0].update([perStep(steps.requests)], seconds);
      plots[1].update([completeSteps(steps.p99_ms), completeSteps(steps.p50_ms)], seconds);
      plots[2].update([perStep(steps.failed)], seconds);
    }
    const edgeRow = (edge, peer, isService) => cells(isService ? serviceLink(peer) : peer, formatRate(edge.per_second), coloredText(healthState(edge), formatShare(edge.success)), formatLatency(edge.p99_ms));
    const callerRows = traffic.edges.filter((edge) => edge.to === name).map((edge) => edgeRow(edge, edge.from, edge.kind !== "workload"));
    const rowsFrom = (kind) => traffic.edges.filter((edge) => edge.from === name && edge.kind === kind).map((edge) => edgeRow(edge, edge.to, true));
    const calleeRows = rowsFrom("service");
    const forwardedRows = rowsFrom("route");
    routedRows.replaceChildren(...forwardedRows);
    routedCard.hidden = forwardedRows.length === 0;
    callers.replaceChildren(...(callerRows.length ? callerRows : [emptyRow("No calls yet.", 4)]));
    callees.replaceChildren(...(calleeRows.length ? calleeRows : [emptyRow("No calls yet.", 4)]));
    const endpointRows = (currentService?.ports ?? []).flatMap((port) => port.endpoints.map((endpoint) => cells(endpoint.workload, h("span", { class: "mono" }, endpoint.address))));
    endpoints.replaceChildren(...(endpointRows.length ? endpointRows : [emptyRow(currentService ? "No endpoints." : "The service was removed.", 2)]));
    const rejectionRows = (traffic.rejections ?? []).filter((rejection) => rejection.service === name).map((rejection) => cells(reasonCell(explanations, rejection.reason), formatShare(rejection.share), `${rejection.requests}`, rejection.sidecars.join(", "), rejection.policies.join(", ")));
    rejections.replaceChildren(...(rejectionRows.length ? rejectionRows : [emptyRow("The mesh rejected no request.", 5)]));
    const reasonRows = Object.entries(history?.reasons ?? {}).sort((a, b) => b[1] - a[1]).map(([reason, count]) => cells(reasonCell(explanations, reason), `${count}`));
    reasons.replaceChildren(...(reasonRows.length ? reasonRows : [emptyRow(rates.failed > 0 ? "The application itself responded with errors." : "No request has failed with a reason.", 2)]));
  }
  return openView(element, [`/history?service=${name}`, "/traffic", "/services", "/reasons"], show);
}

// A reason with a link to its explanation, and the hint below it.
function reasonCell(explanations, label) {
  const explanation = explanations.find((entry) => entry.label === label);
  if (!explanation) return h("span", { class: "mono" }, label);
  return h("div", {}, h("a", { class: "mono", href: `#/reason/${label}`, title: explanation.caption }, label), h("p", { class: "note hint" }, explanation.hint));
}

export function reason(label) {
  const caption = h("p");
  const hint = h("p");
  const more = h("p", { class: "note" });
  const element = h("div", {}, h("div", { class: "head" }, h("h1", { class: "mono" }, label), h("span", { class: "note" }, "reason of a failure")), h("section", { class: "card finding warn" }, h("h2", {}, "Meaning"), caption, h("h2", {}, "Hint"), hint, more));
  return openView(element, ["/reasons"], (explanations) => {
    const explanation = explanations.find((entry) => entry.label === label);
    setText(caption, explanation?.caption ?? "There is no such reason.");
    setText(hint, explanation?.hint ?? "–");
    setText(more, explanation ? `Status ${explanation.status || "none"}. In a terminal: leno explain ${label}` : "");
  });
}

export function explain() {
  const output = h("pre", { class: "mono answer", "aria-live": "polite", tabindex: 0 }, "Shows the rules, policies and endpoints that apply to a request. No request is sent: the page evaluates the current configuration with the code of the sidecars.");
  const input = (label, attributes) => {
    const field = h("input", { type: "text", spellcheck: "false", ...attributes });
    return { field, element: h("label", {}, h("span", {}, label), field) };
  };
  const from = input("Workload", { list: "workloads", placeholder: "bookinfo/productpage-1", required: true });
  const url = input("URL", { placeholder: "http://ratings.bookinfo:9080/ratings/1", required: true });
  const method = input("Method", { value: "GET" });
  const header = input("Header", { placeholder: "end-user: jason" });
  const names = h("datalist", { id: "workloads" });
  const decide = async (event) => {
    event.preventDefault();
    const query = new URLSearchParams({ from: from.field.value.trim(), url: url.field.value.trim(), method: method.field.value.trim() });
    if (header.field.value.trim()) query.append("header", header.field.value.trim());
    // A blank becomes %20, because the server reads a plus literally.
    const response = await fetch(`/api/explain?${query.toString().replaceAll("+", "%20")}`).catch(reportError);
    if (!response) return;
    output.textContent = await response.text();
    output.classList.toggle("bad-ink", !response.ok);
  };
  const form = h("form", { class: "card ask", submit: decide }, from.element, url.element, method.element, header.element, names, h("button", { class: "primary" }, "Explain"));
  const element = h("div", {}, h("div", { class: "head" }, h("h1", {}, "Explain a request"), h("span", { class: "note" }, "how the mesh would handle a request")), form, h("section", { class: "card" }, output));
  const end = pollPaths(["/workloads"], (workloads) => {
    if (names.childElementCount !== workloads.length) names.replaceChildren(...workloads.map((workload) => h("option", { value: workload.name })));
  });
  return { element, end };
}
