// Tests the page of a control plane in a browser: `node page.mjs SCENARIO URL [PICTURES]`; screenshots
// are written to PICTURES. A failure ends the program with an error.

import assert from "node:assert/strict";
import { join } from "node:path";
import { assertAccessible, browse, pressUntil, redPoints, silenced, TIMEOUT_MS } from "./browser.mjs";

const [scenario, url, folder] = process.argv.slice(2);
const home = new URL("/", url).href;

const open = (page, hash) => page.evaluate((hash) => { location.hash = hash; }, hash);
const node = (name) => `[data-node="bookinfo/${name}"]`;
const row = (...texts) => texts.reduce((found, text) => `${found}:has-text("${text}")`, ".list .body .row");

// Takes a screenshot of the whole content.
async function picture(page, name, colorScheme = "light") {
  if (!folder) return;
  const size = page.viewportSize();
  const height = await page.evaluate(() => Math.ceil(document.querySelector("main").lastElementChild.getBoundingClientRect().bottom + scrollY) + 24);
  await page.setViewportSize({ ...size, height });
  await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
  await page.setViewportSize(size);
}

// A healthy mesh, used by keyboard alone.
async function tour(page) {
  const services = ["productpage", "details", "reviews", "reviews-v1", "reviews-v2", "reviews-v3", "ratings", "gateway-ratings"];
  for (const name of services) {
    await page.waitForFunction((selector) => / [·] 100 %/.test(document.querySelector(selector)?.textContent ?? "") && !/\b0\/s/.test(document.querySelector(selector).textContent), node(name));
  }
  const edges = await page.locator("table.hidden tr").allInnerTexts();
  for (const [from, to] of [["productpage", "details"], ["productpage", "reviews"], ["reviews-v3", "ratings"]]) {
    const edge = edges.find((text) => text.startsWith(`bookinfo/${from}\tbookinfo/${to}\t`));
    assert.match(edge ?? "", /mutual TLS$/, `${from} → ${to} in ${edges}`);
  }
  const areVisible = (selector) => page.evaluate((selector) => [...document.querySelectorAll(selector)].map((path) => getComputedStyle(path).display !== "none"), selector);
  assert.deepEqual(new Set(await areVisible(".edge.service.good path.flow")), new Set([true]), "calls flow");
  assert.deepEqual(new Set(await areVisible(".edge.route path.flow")), new Set([false]), "calls routed by a route do not");
  // The text for screen readers has no figures, as they change constantly.
  assert.equal(await page.locator("#verdict").textContent(), "requests succeed, all sidecars are up to date");
  assert.equal(await page.locator("[role=status], [aria-live]").count(), 1);
  await assertAccessible(page, "topology");
  await picture(page, "topology");
  await picture(page, "dark", "dark");
  await checkViews(page);
  // From a service in the graph to its page.
  await pressUntil(page, "Shift+Tab", (title) => document.activeElement.textContent === title, "Topology");
  await page.keyboard.press("Enter");
  await page.locator(node("ratings")).waitFor();
  await pressUntil(page, "Tab", (name) => document.activeElement.dataset.node === name, "bookinfo/ratings");
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: "bookinfo/ratings" }).waitFor();
  await page.locator(".chip.good", { hasText: "healthy" }).waitFor();
  await pressUntil(page, "Tab", (title) => document.activeElement.textContent === title, "1 hour");
  await page.keyboard.press("Enter");
  await page.locator("svg text", { hasText: /^5[89] min ago$/ }).first().waitFor();
  assert.equal(await page.locator("button[aria-pressed=true]").innerText(), "1 hour");
  await assertAccessible(page, "a service");
}

// Every tab and its content.
async function checkViews(page) {
  await page.reload();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  const tabs = {
    Services: row("bookinfo/ratings", "/s", "100 %"),
    Routes: row("bookinfo/reviews", "HTTPRoute", "in force"),
    Policies: row("TrafficTarget", "bookinfo/ratings", "in force"),
    Rules: row("TrafficTarget", "bookinfo/"),
    Sidecars: row("bookinfo/ratings-1", "current", "ago", "in "),
    Findings: ".finding.warn:has-text('warning')",
    Live: ".live-ask input",
    // No policy permits the requests of the demo client `outsider`.
    Rejected: ".finding.warn:has-text('outsider-1')",
    Explain: ".ask input",
  };
  let key = "Tab";
  for (const [title, expected] of Object.entries(tabs)) {
    // After a navigation the focus is on the content, after the tabs.
    await pressUntil(page, key, isTab, title);
    await page.keyboard.press("Enter");
    key = "Shift+Tab";
    await page.locator(`#tabs a[aria-current=page]`, { hasText: title }).waitFor();
    await page.locator(expected).first().waitFor();
    await assertAccessible(page, title);
  }
  await checkExplain(page);
}

const isTab = (title) => document.activeElement.closest("#tabs") !== null && document.activeElement.textContent.startsWith(title);

async function checkExplain(page) {
  for (const text of ["bookinfo/productpage-1", "http://ratings.bookinfo:9080/ratings/1"]) {
    await page.keyboard.press("Tab");
    await page.keyboard.type(text);
  }
  await page.keyboard.press("Enter");
  const output = page.locator("pre.answer");
  await output.filter({ hasText: "bookinfo/ratings" }).waitFor();
  assert.match(await output.innerText(), /verdict/);
  assert.equal(await output.evaluate((element) => element.classList.contains("bad-ink")), false);
}

// Live requests, without and with the token.
async function live(page) {
  const token = new URL(url).hash;
  const note = page.locator("p.note[role=status]");
  const fields = page.locator(".live-ask input");
  const applyFilters = async (status) => {
    await fields.first().waitFor();
    await fields.first().focus();
    for (const text of ["bookinfo/reviews", "/", status]) {
      await page.keyboard.press("Control+A");
      await page.keyboard.type(text);
      await page.keyboard.press("Tab");
    }
    await page.keyboard.press("Enter");
  };
  await open(page, "#/live");
  await applyFilters("2xx");
  await note.filter({ hasText: "leno tap --page" }).waitFor();
  await open(page, token);
  await page.waitForFunction(() => location.hash === "#/live", null);
  await applyFilters("2xx");
  const rows = page.locator(".live tbody tr");
  await page.waitForFunction((minimum) => document.querySelectorAll(".live tbody tr").length >= minimum, folder ? 16 : 3);
  for (const cells of await rows.evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)))) {
    assert.deepEqual([cells[3], cells[4][0], cells[5]], ["GET", "/", "200"], cells.join(" "));
  }
  await page.keyboard.press("Escape");
  await note.filter({ hasText: "Stopped." }).waitFor();
  await picture(page, "live");
  // An invalid filter is reported next to its input.
  await applyFilters("9xx");
  await note.filter({ hasText: "use 503, 5xx or 400-499" }).waitFor();
}

// Prints the number of red points of a healthy mesh, for comparison.
async function calm(page) {
  await page.locator(`${node("details")}.good`).waitFor();
  assert.deepEqual(await page.locator(".graph .bad").allInnerTexts(), [], "nothing fails");
  console.log(`red points: ${await redPoints(page)}`);
}

// `details` fails: it is red in the graph, and its page shows the reason.
async function failing(page) {
  await page.locator(`${node("details")}.bad`).waitFor();
  await page.locator(`${node("ratings")}.good`).waitFor();
  const fill = await page.locator(`${node("details")} .bar`).evaluate((bar) => getComputedStyle(bar).fill);
  const [red, green, blue] = fill.match(/\d+/g).map(Number);
  assert.ok(red > 2 * green && red > 2 * blue, `${fill} is not red`);
  console.log(`red points: ${await redPoints(page)}`);
  await assertAccessible(page, "something fails");
  await picture(page, "failing");
  await page.locator(node("details")).click();
  await page.locator(".chip.bad", { hasText: "failing" }).waitFor();
  for (const title of ["Traffic", "Latency", "Errors"]) {
    const plot = page.locator(".card", { has: page.locator(`svg[aria-label^="${title}"]`) });
    await plot.locator("path.curve").first().waitFor();
  }
  await page.locator("path.area.bad").waitFor();
  await page.locator("td.mono, td .mono", { hasText: "denied" }).first().waitFor();
  await assertAccessible(page, "a service that fails");
  await picture(page, "service");
}

// Very many services: the list appears and can be filtered immediately, and the graph stays readable.
async function crowd(page) {
  await page.addInitScript(() => {
    const observer = new MutationObserver(() => {
      const search = document.querySelector("input[type=search]");
      if (!search || document.querySelectorAll(".list .body .row").length < 2) return;
      observer.disconnect();
      search.value = "-0777";
      search.dispatchEvent(new Event("input"));
      performance.mark("usable");
    });
    observer.observe(document, { childList: true, subtree: true });
  });
  let best = Infinity;
  // Other processes on this machine can only slow this down.
  for (let attempts = 0; attempts < CROWD_ATTEMPTS && best >= CROWD_MS_MAX; attempts += 1) {
    await page.goto("about:blank");
    await page.goto(`${home}#/services`);
    await page.waitForFunction(() => performance.getEntriesByName("usable").length > 0);
    best = Math.min(best, await page.evaluate(() => performance.getEntriesByName("usable")[0].startTime));
  }
  console.log(`usable after ${Math.round(best)} ms`);
  assert.ok(best < CROWD_MS_MAX, `only after ${best} ms`);
  assert.equal(await page.locator(".list .body .row").count(), 1);
  assert.match(await page.locator(".list .body .row").innerText(), /crowd\/service-0777/);
  await page.locator("input[type=search]").fill("");
  const rows = await page.locator(".list .body .row").count();
  assert.ok(rows > 10 && rows < 80, `${rows} rows of 1000 are in the document`);
  await page.locator(".list .scroll").evaluate((scroll) => { scroll.scrollTop = scroll.scrollHeight; });
  await page.locator(row("crowd/service-0999")).waitFor();
  await checkLargeGraph(page);
}

// The machine cannot run so many sidecars: their reports are simulated.
async function checkLargeGraph(page) {
  const name = (number) => `crowd/service-${String(number).padStart(4, "0")}`;
  const rates = (number) => ({ per_second: number, success: number % 97 === 0 ? 0.5 : 1, p50_ms: 1, p99_ms: 2, requests: number, failed: 0, recent: [number, number] });
  const services = Array.from({ length: 1000 }, (_, index) => ({ name: name(index), ...rates(index + 1) }));
  const edges = Array.from({ length: 2000 }, (_, index) => ({ from: name((index * 7) % 1000), to: name((index * 13 + 5) % 1000), kind: "service", mtls: true, ...rates(index + 1) }));
  await page.route("**/api/traffic", (route) => route.fulfill({ json: { services, routes: [], edges, sidecars: [], rules: [] } }));
  await page.goto("about:blank");
  const started = Date.now();
  await page.goto(home);
  await page.locator("[data-node]").first().waitFor();
  console.log(`1000 services and 2000 edges are drawn after ${Date.now() - started} ms`);
  assert.equal(await page.locator("[data-node]").count(), 80);
  assert.match(await page.locator(".head .note").innerText(), /920 more under Services/);
  await page.locator("[data-node].bad").first().focus();
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: "crowd/service-" }).waitFor();
}

const CROWD_ATTEMPTS = 5;
const CROWD_MS_MAX = 1000;

// Texts, dots, chips and lines in a green color.
const greenParts = () => [...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  if (box.width === 0 || style.display === "none" || style.visibility === "hidden") return false;
  const isText = [...element.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  const colors = [style.backgroundColor, style.borderLeftColor, ...(isText ? [style.color] : []), ...(element instanceof SVGElement ? [style.fill, style.stroke] : [])];
  return colors.some((color) => {
    const [red, green, blue, alpha = 1] = (color.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
    return alpha > 0 && green > 1.25 * red && green > 1.25 * blue;
  });
}).map((element) => element.outerHTML.slice(0, 120));

// Without a response, before the first one and after an outage, no element looks healthy.
async function silent(page) {
  const api = "**/api/**";
  silenced.add(page);
  // No data yet: neither an empty nor a healthy mesh is shown.
  const pending = [];
  await page.route(api, (route) => { pending.push(route); });
  for (const hash of ["", "#/services", "#/routes", "#/policies", "#/rules", "#/sidecars", "#/findings", "#/rejected", "#/service/bookinfo/ratings"]) {
    await page.goto("about:blank");
    await page.goto(`${home}${hash}`);
    await page.locator("main .loading").waitFor();
    const text = await page.locator("main").innerText();
    assert.doesNotMatch(text, /No service has received requests|No entries yet|No document is rejected|There are no problems|No calls yet|100 %|healthy|ago/, hash);
    assert.deepEqual(await page.evaluate(greenParts), [], `${hash} before an answer`);
  }
  for (const route of pending) await route.abort().catch(() => {});
  await page.unroute(api);
  await page.goto("about:blank");
  await page.goto(home);
  await page.locator(`${node("ratings")}.good`).waitFor();
  assert.notDeepEqual(await page.evaluate(greenParts), [], "it is healthy now");
  // A control plane that has exited, and one that is stopped but accepts connections.
  for (const failure of [(route) => route.abort(), () => {}]) {
    for (const hash of ["#/", "#/services", "#/sidecars", "#/policies", "#/service/bookinfo/ratings"]) {
      await open(page, hash);
      await page.locator("main .loading").waitFor({ state: "detached" });
      await page.route(api, failure);
      await page.locator("#stale:visible").waitFor();
      assert.deepEqual(await page.evaluate(greenParts), [], `${hash} without a control plane`);
      assert.deepEqual(await page.locator(".flow").evaluateAll((all) => all.filter((flow) => getComputedStyle(flow).display !== "none").length), 0);
      assert.equal(await page.locator("#verdict").textContent(), "the control plane does not respond");
      assert.match(await page.locator("#health").innerText(), /^The control plane does not respond/);
      assert.match(await page.locator("#stale").innerText(), /shows the data of \d\d:\d\d:\d\d/);
      await page.unroute(api);
      await page.locator("#stale").waitFor({ state: "hidden" });
    }
  }
  await assertAccessible(page, "after an outage");
  await checkMissing(page);
}

// An unknown service, a reason, rules as text, and the hint of the live requests view.
async function checkMissing(page) {
  await open(page, "#/service/bookinfo/nosuch");
  await page.locator("main .empty", { hasText: "There is no such service." }).waitFor();
  const text = await page.locator("main").innerText();
  assert.doesNotMatch(text, /-\d|ago|no requests|–/, text);
  await open(page, "#/reason/connect-failed");
  await page.locator("main", { hasText: "leno explain connect-failed" }).waitFor();
  assert.match(await page.locator("main").innerText(), /Hint\n+.{10,}/);
  await open(page, "#/rules");
  await page.locator(row("bookinfo/reviews", "weight")).first().waitFor();
  const cells = await page.locator(".list .body .cell").evaluateAll((all) => all.filter((cell) => cell.scrollWidth > cell.clientWidth && !cell.title && !cell.querySelector("[title]")).map((cell) => cell.textContent));
  assert.deepEqual(cells, [], "a text that is cut off has a tooltip");
  await page.evaluate(() => sessionStorage.clear());
  await open(page, "#/live");
  await page.locator("p.note[role=status]", { hasText: "leno tap --page" }).waitFor();
}

// Conditions that break traffic: every view shows their number, with a link to all of them and their hints.
async function conditions(page) {
  await page.locator("#health a.chip.bad", { hasText: /^\d+ problems$/ }).waitFor();
  await page.waitForFunction(() => / problems$/.test(document.querySelector("#verdict").textContent));
  await page.locator("#health a.chip.bad").click();
  for (const text of ["Address already in use", "the application keeps exiting"]) {
    await page.locator(".finding:not(.warn)", { hasText: text }).locator("p", { hasText: /.{10,}/ }).waitFor();
  }
  await page.locator("#tabs a[aria-current=page]", { hasText: "Findings" }).waitFor();
  await assertAccessible(page, "findings");
}

const scenarios = { tour, live, calm, failing, crowd, silent, conditions };
setTimeout(() => { console.error(`${scenario} takes too long`); process.exit(1); }, 3 * TIMEOUT_MS).unref();
await browse(home, scenarios[scenario]);
