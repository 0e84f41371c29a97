"use strict";
// Numbers that a page holds, and how they are shown.

/** The value of JSON, deflated, in base64. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const HUNDREDTHS = { minimumFractionDigits: 2, maximumFractionDigits: 2, roundingMode: "halfEven" }; // as Python rounds

const shown = (number) => number.toLocaleString("en");

/** A size as text, in 1024-based units. */
function sized(bytes) {
  let unit = 0;
  while (unit + 1 < UNITS.length && Math.round((bytes / 1024 ** unit) * 100) >= 102400) unit += 1;
  return unit ? `${(bytes / 1024 ** unit).toLocaleString("en", HUNDREDTHS)} ${UNITS[unit]}` : `${shown(bytes)} B`;
}
