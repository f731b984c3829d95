// Shows a list of any length: only rows in view, and a few around them, are in the DOM.

import { h, setText } from "./dom.js";

// The height of a row in page.css, with its border.
const ROW_HEIGHT = 43;
// The number of rows in the DOM above and below those in view.
const ROWS_BEYOND = 8;

// columns: { name, width, number, value(row): sort key and text for the filter, show(row): node or text }. `number`
// is true for a column that is aligned to the right and first sorted from the highest value. `rowState(row)` returns
// the CSS class of a row. `sort` is the initial order: { column: index, down: from the highest value }.
export function list({ label, columns, rowState, sort, hint }) {
  let rows = [];
  // The rows that match the filter, in order.
  let filteredRows = [];
  let filter = "";
  let sortOrder = sort ?? { column: 0, down: false };
  const gridTemplate = columns.map((column) => column.width ?? "1fr").join(" ");
  const headerRow = h("div", { class: "row names", role: "row", "aria-rowindex": 1 });
  const body = h("div", { class: "body", role: "rowgroup" });
  const emptyNotice = h("p", { class: "empty" }, "No entries yet.");
  const scrollArea = h("div", { class: "scroll", role: "table", "aria-label": label, tabindex: 0, scroll: drawRows }, h("div", { role: "rowgroup" }, headerRow), body);
  const count = h("span", { class: "note" });
  // Screen readers announce this summary after a change of the filter, but not after each update.
  const summary = h("span", { class: "hidden", role: "status" });
  const search = h("input", { type: "search", placeholder: "Filter…", "aria-label": `Filter ${label.toLowerCase()}`, input: () => { filter = search.value.trim().toLowerCase(); filterAndSort(); setText(summary, `${filteredRows.length} of ${rows.length} shown`); } });
  const card = h("section", { class: "card list" }, scrollArea, emptyNotice);
  const element = h("div", {}, h("div", { class: "head" }, h("h1", {}, label), count, summary, hint ? h("span", { class: "note" }, hint) : null, h("span", { class: "space" }), search), card);
  headerRow.style.gridTemplateColumns = gridTemplate;

  const headerCells = columns.map((column, index) => {
    const button = h("button", { type: "button", click: () => sortBy(index) }, column.name);
    const head = h("div", { role: "columnheader", class: column.number ? "number" : "" }, column.value ? button : h("span", {}, column.name));
    headerRow.append(head);
    return head;
  });

  function sortBy(index) {
    sortOrder = { column: index, down: sortOrder.column === index ? !sortOrder.down : Boolean(columns[index].number) };
    filterAndSort();
  }

  function searchText(row) {
    return columns.map((column) => column.value?.(row) ?? "").join(" ").toLowerCase();
  }

  function filterAndSort() {
    headerCells.forEach((head, index) => {
      if (index === sortOrder.column) head.setAttribute("aria-sort", sortOrder.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const value = columns[sortOrder.column].value;
    filteredRows = filter ? rows.filter((row) => searchText(row).includes(filter)) : rows.slice();
    filteredRows.sort((first, second) => {
      // An absent value is below all numbers.
      const [a, b] = [value(first) ?? -1, value(second) ?? -1];
      const result = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en");
      return sortOrder.down ? -result : result;
    });
    setText(count, filteredRows.length === rows.length ? `${rows.length}` : `${filteredRows.length} of ${rows.length}`);
    scrollArea.setAttribute("aria-rowcount", filteredRows.length + 1);
    emptyNotice.hidden = filteredRows.length > 0;
    body.style.height = `${filteredRows.length * ROW_HEIGHT}px`;
    drawRows();
  }

  function drawRows() {
    // The height is 0 before the list is in the page.
    const height = scrollArea.clientHeight || 800;
    const first = Math.max(0, Math.floor(scrollArea.scrollTop / ROW_HEIGHT) - ROWS_BEYOND);
    const last = Math.min(filteredRows.length, Math.ceil((scrollArea.scrollTop + height) / ROW_HEIGHT) + ROWS_BEYOND);
    // A focused link keeps the focus when the figures change.
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const lines = [];
    for (let index = first; index < last; index += 1) {
      const row = filteredRows[index];
      const cells = columns.map((column) => {
        const content = column.show(row);
        // The title has the whole text of a cell that is too narrow for it.
        const title = typeof content === "string" ? content : content.querySelector?.("svg, [title]") || content.title || content.tagName === "svg" ? null : content.textContent;
        return h("div", { role: "cell", class: `cell${column.number ? " number" : ""}`, title }, content);
      });
      const line = h("div", { class: `row ${rowState?.(row) ?? ""}`, role: "row", "aria-rowindex": index + 2 }, cells);
      line.style.gridTemplateColumns = gridTemplate;
      line.style.top = `${index * ROW_HEIGHT}px`;
      lines.push(line);
    }
    body.replaceChildren(...lines);
    if (focused) body.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  addEventListener("resize", drawRows);
  return { element, update: (newRows) => { rows = newRows; filterAndSort(); }, end: () => removeEventListener("resize", drawRows) };
}
