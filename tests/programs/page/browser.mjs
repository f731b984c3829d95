// A real Chromium with one page in it that notices what a page must not do.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

// They are installed where everything is built: see `./test`.
const require = createRequire(join(process.env.LENO_PAGE_MODULES, "page.js"));
const { chromium } = require("playwright-core");
const { AxeBuilder } = require("@axe-core/playwright");

export const PATIENCE_MS = 60_000;

// Opens a browser, lets `use` do what it wants with a page, and says what went wrong beside that.
export async function browse(home, use, { width = 1400, height = 900 } = {}) {
  const origin = new URL(home).origin;
  const browser = await chromium.launch({ executablePath: process.env.LENO_CHROMIUM, args: ["--disable-dev-shm-usage"] });
  try {
    const context = await browser.newContext({ viewport: { width, height }, reducedMotion: "reduce" });
    context.setDefaultTimeout(PATIENCE_MS);
    const page = await context.newPage();
    const problems = [];
    // That live requests are refused without the token is told there as well, and is as it should be.
    const isRefusal = (message) => message.text().startsWith("Failed to load resource") && (message.location().url.includes("/api/tap?") || silenced.has(page));
    page.on("console", (message) => { if (message.type() === "error" && !isRefusal(message)) problems.push(`console: ${message.text()}`); });
    page.on("pageerror", (error) => problems.push(`thrown: ${error.message}`));
    page.on("request", (request) => { if (new URL(request.url()).origin !== origin) problems.push(`left its origin: ${request.url()}`); });
    await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`forbidden by the policy: ${event.violatedDirective}`)));
    await page.goto(home);
    await use(page);
    assert.deepEqual(problems, [], "errors or forbidden requests of the page");
  } finally {
    await browser.close();
  }
}

// Pages on which requests fail on purpose.
export const silenced = new WeakSet();

// Nothing that the rules of WCAG 2 (A and AA) find wrong, in light and in dark.
export async function accessible(page, where) {
  for (const colorScheme of ["dark", "light"]) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    const found = await new AxeBuilder({ page }).setLegacyMode().analyze();
    const told = found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`));
    assert.deepEqual(told, [], `${where}, ${colorScheme}`);
  }
}

// Presses a key until what has the focus is wanted, which is asked with what it is.
export async function press(page, key, wanted, what) {
  for (let times = 0; times < PRESSES_MAX; times += 1) {
    await page.keyboard.press(key);
    if (await page.evaluate(wanted, what)) return;
  }
  assert.fail(`${what} is not reached with ${key}`);
}

// How many points of what is seen are red, as those of what fails are, and nothing else.
export async function redPoints(page) {
  const picture = (await page.screenshot()).toString("base64");
  return page.evaluate(async (picture) => {
    const bytes = Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    canvas.drawImage(bitmap, 0, 0);
    const { data } = canvas.getImageData(0, 0, bitmap.width, bitmap.height);
    let red = 0;
    for (let at = 0; at < data.length; at += 4) if (data[at] > 190 && data[at + 1] < 90 && data[at + 2] < 100) red += 1;
    return red;
  }, picture);
}

const PRESSES_MAX = 80;
