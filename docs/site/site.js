// What the theme leaves out for readers without a mouse or without eyes. It wraps tables after the page is loaded.
addEventListener("load", () => setTimeout(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, .md-search__scrollwrap")) part.tabIndex = 0;
}));
