// A list of any length: only visible rows are in the DOM.

import { h, setText } from "./dom.js";

const ROW_HEIGHT = 43;
const ROWS_BEYOND = 8;

// columns: { name, width, number, value(row): sort key, show(row): node or text }
export function list({ label, columns, verdict, sort, hint }) {
  let rows = [];
  let visible = [];
  let filter = "";
  let order = sort ?? { column: 0, down: false };
  const template = columns.map((column) => column.width ?? "1fr").join(" ");
  const names = h("div", { class: "row names", role: "row", "aria-rowindex": 1 });
  const body = h("div", { class: "body", role: "rowgroup" });
  const empty = h("p", { class: "empty" }, "No entries yet.");
  const scroll = h("div", { class: "scroll", role: "table", "aria-label": label, tabindex: 0, scroll: draw }, h("div", { role: "rowgroup" }, names), body);
  const count = h("span", { class: "note" });
  // Announced by screen readers after a filter change only, not after each update.
  const summary = h("span", { class: "hidden", role: "status" });
  const search = h("input", { type: "search", placeholder: "Filter…", "aria-label": `Filter ${label.toLowerCase()}`, input: () => { filter = search.value.trim().toLowerCase(); arrange(); setText(summary, `${visible.length} of ${rows.length} shown`); } });
  const card = h("section", { class: "card list" }, scroll, empty);
  const element = h("div", {}, h("div", { class: "head" }, h("h1", {}, label), count, summary, hint ? h("span", { class: "note" }, hint) : null, h("span", { class: "space" }), search), card);
  names.style.gridTemplateColumns = template;

  const heads = columns.map((column, index) => {
    const button = h("button", { type: "button", click: () => sortBy(index) }, column.name);
    const head = h("div", { role: "columnheader", class: column.number ? "number" : "" }, column.value ? button : h("span", {}, column.name));
    names.append(head);
    return head;
  });

  function sortBy(index) {
    order = { column: index, down: order.column === index ? !order.down : Boolean(columns[index].number) };
    arrange();
  }

  function text(row) {
    return columns.map((column) => (column.text ?? column.value)?.(row) ?? "").join(" ").toLowerCase();
  }

  function arrange() {
    heads.forEach((head, index) => {
      if (index === order.column) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const value = columns[order.column].value;
    visible = filter ? rows.filter((row) => text(row).includes(filter)) : rows.slice();
    visible.sort((first, second) => {
      const [a, b] = [value(first) ?? -1, value(second) ?? -1];
      const result = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en");
      return order.down ? -result : result;
    });
    setText(count, visible.length === rows.length ? `${rows.length}` : `${visible.length} of ${rows.length}`);
    scroll.setAttribute("aria-rowcount", visible.length + 1);
    empty.hidden = visible.length > 0;
    body.style.height = `${visible.length * ROW_HEIGHT}px`;
    draw();
  }

  function draw() {
    const height = scroll.clientHeight || 800;
    const first = Math.max(0, Math.floor(scroll.scrollTop / ROW_HEIGHT) - ROWS_BEYOND);
    const last = Math.min(visible.length, Math.ceil((scroll.scrollTop + height) / ROW_HEIGHT) + ROWS_BEYOND);
    // A focused link keeps the focus when the figures change.
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const lines = [];
    for (let index = first; index < last; index += 1) {
      const row = visible[index];
      const cells = columns.map((column) => {
        const content = column.show(row);
        // A cell that is too narrow truncates its text.
        const title = typeof content === "string" ? content : content.querySelector?.("svg, [title]") || content.title || content.tagName === "svg" ? null : content.textContent;
        return h("div", { role: "cell", class: `cell${column.number ? " number" : ""}`, title }, content);
      });
      const line = h("div", { class: `row ${verdict?.(row) ?? ""}`, role: "row", "aria-rowindex": index + 2 }, cells);
      line.style.gridTemplateColumns = template;
      line.style.top = `${index * ROW_HEIGHT}px`;
      lines.push(line);
    }
    body.replaceChildren(...lines);
    if (focused) body.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  addEventListener("resize", draw);
  return { element, update: (newRows) => { rows = newRows; arrange(); }, end: () => removeEventListener("resize", draw) };
}
