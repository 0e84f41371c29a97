"use strict";
// Asks the server for a prediction at each change, and keeps both settings in the address.
const pair = document.querySelector(".settings");
const peaks = {};

const named = (form) => [...form.elements].filter((each) => each.name);
const valueOf = (field) => (field.type === "checkbox" ? String(field.checked) : field.value);
const settingOf = (section) => Object.fromEntries(named(section.querySelector("form")).map((each) => [each.name, valueOf(each)]));

function fill(section, setting) {
  for (const field of named(section.querySelector("form"))) {
    const value = setting[field.name];
    if (value === undefined) continue;
    if (field.type === "checkbox") field.checked = value === true || value === "true";
    else field.value = value;
  }
}

/** An element with text in it. */
function element(name, text, kind = "") {
  return Object.assign(document.createElement(name), { textContent: text, className: kind });
}

function show(section, answer) {
  const found = section.querySelector(".found");
  if (answer.error) return found.replaceChildren(element("p", answer.error, "bad"));
  const table = document.createElement("table");
  for (const [name, size] of Object.entries(answer.by_category)) {
    const row = table.insertRow();
    row.append(element("td", name), element("td", size.toLocaleString("en"), "n"));
  }
  const picture = document.createElement("div");
  picture.innerHTML = answer.timeline; // the server's own
  const verdict = element("p", answer.verdict, `verdict ${answer.verdict.startsWith("fits") ? "good" : "bad"}`);
  const peak = element("p", "peak ");
  peak.append(element("b", answer["peak text"]), `; reserved ${answer.reserved.toLocaleString("en")}`);
  const lines = [answer.command, answer.code].filter(Boolean).map((text) => element("pre", text));
  found.replaceChildren(peak, verdict, picture, table, ...lines);
}

const waiting = {};
async function ask(section) {
  const setting = settingOf(section);
  section.querySelector("output").textContent = setting.batch_size;
  history.replaceState(null, "", `#${[...pair.children].map((each) => `${each.id}=${new URLSearchParams(settingOf(each))}`).join(";")}`);
  const number = (waiting[section.id] = (waiting[section.id] ?? 0) + 1);
  const top = Math.max(0, ...Object.values(peaks));
  const answer = await (await fetch(`predict?${new URLSearchParams({ ...setting, top })}`)).json();
  if (number !== waiting[section.id]) return; // a later change has been made
  const before = Math.max(0, ...Object.values(peaks));
  peaks[section.id] = answer.peak ?? 0;
  show(section, answer);
  const highest = Math.max(0, ...Object.values(peaks));
  if (highest !== before) for (const other of pair.children) if (other !== section) ask(other);
}

function listen(section) {
  section.querySelector("form").addEventListener("input", () => ask(section));
  section.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
}

/** The second setting beside the first, or none. */
function compare(setting) {
  const second = pair.firstElementChild.cloneNode(true);
  second.id = "b";
  second.querySelector("h2").textContent = "B";
  second.querySelector("form").setAttribute("aria-label", "setting B");
  pair.append(second);
  fill(second, setting);
  listen(second);
  document.getElementById("second").hidden = true;
  ask(second);
}

async function begin() {
  const first = document.getElementById("a");
  const kept = Object.fromEntries(location.hash.slice(1).split(";").filter(Boolean).map((part) => {
    const at = part.indexOf("=");
    return [part.slice(0, at), Object.fromEntries(new URLSearchParams(part.slice(at + 1)))];
  }));
  fill(first, kept.a ?? (await (await fetch("start")).json()));
  listen(first);
  await ask(first);
  if (kept.b) compare(kept.b);
  document.getElementById("second").addEventListener("click", () => compare(settingOf(first)));
}
begin();
