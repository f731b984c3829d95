// A real Chromium with one page, which reports errors and forbidden requests of the page.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

// The modules are installed in the build directory: see `./test`.
const require = createRequire(join(process.env.LENO_PAGE_MODULES, "page.js"));
const { chromium } = require("playwright-core");
const { AxeBuilder } = require("@axe-core/playwright");

export const TIMEOUT_MS = 60_000;

// Opens a browser, runs `action` with a page, and fails on errors of the page.
export async function browse(home, action, { width = 1400, height = 900 } = {}) {
  const origin = new URL(home).origin;
  const browser = await chromium.launch({ executablePath: process.env.LENO_CHROMIUM, args: ["--disable-dev-shm-usage"] });
  try {
    const context = await browser.newContext({ viewport: { width, height }, reducedMotion: "reduce" });
    context.setDefaultTimeout(TIMEOUT_MS);
    const page = await context.newPage();
    const problems = [];
    // Live requests without the token are rejected, which the console reports as well.
    const isExpected = (message) => message.text().startsWith("Failed to load resource") && (message.location().url.includes("/api/tap?") || silenced.has(page));
    page.on("console", (message) => { if (message.type() === "error" && !isExpected(message)) problems.push(`console: ${message.text()}`); });
    page.on("pageerror", (error) => problems.push(`thrown: ${error.message}`));
    page.on("request", (request) => { if (new URL(request.url()).origin !== origin) problems.push(`left its origin: ${request.url()}`); });
    await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`forbidden by the policy: ${event.violatedDirective}`)));
    await page.goto(home);
    await action(page);
    assert.deepEqual(problems, [], "errors or forbidden requests of the page");
  } finally {
    await browser.close();
  }
}

// Pages on which failed requests are expected.
export const silenced = new WeakSet();

// Asserts that the WCAG 2 rules (A and AA) find no violation, in light and dark mode.
export async function assertAccessible(page, where) {
  for (const colorScheme of ["dark", "light"]) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    const found = await new AxeBuilder({ page }).setLegacyMode().analyze();
    const violations = found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`));
    assert.deepEqual(violations, [], `${where}, ${colorScheme}`);
  }
}

// Presses a key until the focused element fulfills the condition.
export async function pressUntil(page, key, condition, argument) {
  for (let presses = 0; presses < PRESSES_MAX; presses += 1) {
    await page.keyboard.press(key);
    if (await page.evaluate(condition, argument)) return;
  }
  assert.fail(`${argument} is not reached with ${key}`);
}

// Counts the red points of a screenshot; only failures are red.
export async function redPoints(page) {
  const picture = (await page.screenshot()).toString("base64");
  return page.evaluate(async (picture) => {
    const bytes = Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0));
    const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    canvas.drawImage(bitmap, 0, 0);
    const { data } = canvas.getImageData(0, 0, bitmap.width, bitmap.height);
    let red = 0;
    for (let index = 0; index < data.length; index += 4) if (data[index] > 190 && data[index + 1] < 90 && data[index + 2] < 100) red += 1;
    return red;
  }, picture);
}

const PRESSES_MAX = 80;
