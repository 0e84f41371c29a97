
// Filters the table (tables.js) and says how many rows are left.
document.querySelector(".filter input").addEventListener("input", ({ target }) => {
  const rows = matching(document.querySelector("table.all"), target.value);
  document.querySelector(".shown").textContent = `${rows.length} ${rows.length === 1 ? "row" : "rows"}`;
});
