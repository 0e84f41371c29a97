"use strict";
// Draws the figures in the page's own colours and width, and filters its tables (tables.js). Asks nobody for anything.

const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A trace in the page's colours: what is drawn in ink, and tiles, of which those without a colour are modules. */
function painted(trace, narrow) {
  if (trace.meta === "ink") return { ...trace, line: { ...trace.line, color: colour("--ink") } };
  if (trace.meta !== "tiles") return trace;
  const colours = trace.marker.colors.map((own, i) => (trace.customdata[i] ? own : mixed(own, colour("--ground"), 0.25)));
  const marker = { ...trace.marker, colors: colours, line: { ...trace.marker.line, color: colour("--ground") } };
  const pad = { t: narrow ? 19 : 21, l: 2, r: 2, b: 2 };
  return { ...trace, maxdepth: narrow ? 4 : -1, marker: { ...marker, pad }, textfont: { color: colours.map(legible) } };
}

/** So much of one colour (#rrggbb) in another. */
function mixed(own, ground, share) {
  const part = (text, at) => parseInt(text.slice(at, at + 2), 16);
  const sum = [1, 3, 5].map((at) => Math.round(share * part(own, at) + (1 - share) * part(ground, at)));
  return `#${sum.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** Black or white, whichever is read better on a colour (#rrggbb). */
function legible(ground) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(ground.slice(at, at + 2), 16) / 255);
  return 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2 > 0.18 ? "#000000" : "#ffffff";
}

/** The names of the phases that have room for theirs. */
function named(layout, width) {
  const each = (width - layout.margin.l - layout.margin.r) / (layout.xaxis.range[1] || 1);
  const place = { yref: "paper", y: 1, yanchor: "bottom", showarrow: false };
  return layout.meta.phases
    .filter(([name, start, stop]) => name && (stop - start) * each > name.length * 6.5 + 4)
    .map(([name, start, stop]) => ({ ...place, x: (start + stop) / 2, text: name }));
}

/** A figure as this window shows it. */
function fitted({ data, layout }, width) {
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line") };
  const narrow = width < 600;
  return {
    data: data.map((trace) => painted(trace, narrow)),
    layout: {
      ...layout,
      height: layout.legend ? (narrow ? 460 : 400) : 340,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), size: narrow ? 11 : 12 },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--ink") }, align: "left" },
      ...(layout.xaxis && { xaxis: { ...layout.xaxis, ...axis }, yaxis: { ...layout.yaxis, ...axis } }),
      ...(layout.meta && { annotations: [...layout.annotations, ...named(layout, width)] }),
    },
  };
}

function draw() {
  for (const [name, figure] of Object.entries(figures)) {
    const place = document.getElementById(name);
    const { data, layout } = fitted(figure, place.clientWidth);
    place.style.height = `${layout.height}px`;
    Plotly.react(place, data, layout, { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] });
  }
}

let waiting = 0;
function redraw() {
  clearTimeout(waiting);
  waiting = setTimeout(draw, 100);
}

/** Hides the rows without the words, and says how many are left and their bytes; rows of many blocks know what these are only. */
function filter(input) {
  const run = input.closest(".run");
  const table = run.querySelector("table");
  const rows = matching(table, input.value);
  const bytes = rows.reduce((sum, row) => sum + Number(row.cells[0].dataset.n), 0);
  const shown = run.querySelector(".shown");
  shown.replaceChildren(`${rows.length.toLocaleString("en")} rows, `, Object.assign(document.createElement("b"), { className: "sum" }), " B");
  if (table.querySelector(".rest[hidden]")) shown.append(" (the smaller blocks are found by what they are, not by name)");
  shown.querySelector(".sum").textContent = bytes.toLocaleString("en");
}

draw();
dark.addEventListener("change", draw);
window.addEventListener("resize", redraw);
for (const input of document.querySelectorAll(".filter input")) input.addEventListener("input", () => filter(input));
