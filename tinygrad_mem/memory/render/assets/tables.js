"use strict";
// Tables that sort and filter. A cell with data-n holds a number; other cells hold words.

/** Sorts a table's rows by one column: numbers from the largest, words from the first. */
function sort(header) {
  const column = header.cellIndex;
  const body = header.closest("table").tBodies[0];
  const numbers = [...body.rows].some((row) => row.cells[column].dataset.n !== undefined);
  const value = ({ dataset, textContent }) => (numbers ? Number(dataset.n ?? -Infinity) : textContent);
  const compare = numbers ? (a, b) => Math.sign(a - b) || 0 : (a, b) => a.localeCompare(b);
  const now = header.getAttribute("aria-sort");
  const up = now === "none" ? !numbers : now === "descending";
  const order = (a, b) => compare(value(a.cells[column]), value(b.cells[column]));
  body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
  for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
}

/** Hides a table's rows that lack one of the words; the rows that are left. */
function matching(table, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...table.tBodies[0].rows];
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  return rows.filter((row) => !row.hidden);
}

for (const button of document.querySelectorAll("thead button")) button.addEventListener("click", () => sort(button.closest("th")));
