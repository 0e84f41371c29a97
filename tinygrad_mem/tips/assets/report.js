
// Filters the table (tables.js) and says how many cases are left.
document.querySelector(".filter input").addEventListener("input", ({ target }) => {
  const rows = matching(document.querySelector("table.tips"), target.value);
  document.querySelector(".shown").textContent = `${rows.length} ${rows.length === 1 ? "case" : "cases"}`;
});
