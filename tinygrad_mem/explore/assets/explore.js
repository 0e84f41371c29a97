// Shows a prediction for each setting, and keeps the settings in the address. Predictions come from the server beside the page,
// or, on a page without one, from files of predictions made beforehand.
const offered = JSON.parse(document.getElementById("offered").textContent);
const pair = document.querySelector(".settings");
const second = document.getElementById("second");
const answers = {}; // by section

// The setting in a form. A slider's value is a number, or the place of one in its list.
const fieldsOf = (section) => [...section.querySelector("form").elements].filter((each) => each.name);
const listOf = (field) => field.dataset.values?.split(" ");
const valueOf = (field) => (field.type === "checkbox" ? String(field.checked) : (listOf(field)?.[field.value] ?? field.value));
const settingOf = (section) => Object.fromEntries(fieldsOf(section).map((each) => [each.name, valueOf(each)]));

/** Puts a setting into a form; what the form does not offer stays as it was, and the page says so. */
function fill(section, setting) {
  const form = section.querySelector("form");
  const refused = Object.entries(setting).filter(([name, value]) => {
    const field = form.elements.namedItem(name);
    if (!field) return String(value) !== String(offered.start[name] ?? "");
    const before = field.value;
    if (field.type === "checkbox") field.checked = String(value) === "true";
    else field.value = listOf(field)?.indexOf(String(value)) ?? value;
    if (valueOf(field) === String(value)) return false;
    field.value = before;
    return true;
  });
  section.querySelector(".refused")?.remove();
  if (refused.length) section.append(element("p", `Not offered here: ${refused.map((each) => each.join(" ")).join(", ")}.`, "refused other"));
}

// Answers
const ended = { error: "The program that this page asks has ended. Start it again." };
const fromServer = (setting) => fetch(`predict?${new URLSearchParams(setting)}`).then((response) => response.json()).catch(() => ended);

const arriving = {}; // a file of predictions calls arrived(network, packed) when it is loaded
const arrived = (network, packed) => arriving[network].done(unpacked(packed));
function load(network) {
  const file = (arriving[network] ??= {});
  return (file.promise ??= new Promise((done) => {
    file.done = done;
    const onerror = () => done(null);
    document.head.append(Object.assign(document.createElement("script"), { src: `${offered.files}/${network}.js`, onerror }));
  }));
}

const fromFiles = async (setting) => {
  const predictions = await load(setting.network);
  if (!predictions) return { error: `The file of predictions ${offered.files}/${setting.network}.js cannot be loaded.` };
  const place = Object.entries(offered.grid).reduce((at, [name, values]) => at * values.length + values.map(String).indexOf(setting[name]), 0);
  return predictions[place];
};
const answerOf = offered.files ? fromFiles : fromServer;

/** The bytes of "8 GiB", rounded down; NaN if that is no size. */
function bytesOf(text) {
  const [, number, unit] = text.match(/^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$/) ?? [];
  if (!(offered.units[unit?.toUpperCase()] > 0)) return NaN;
  const [whole, part = ""] = number.split(".");
  return Number((BigInt(whole + part) * BigInt(offered.units[unit.toUpperCase()])) / 10n ** BigInt(part.length)) || NaN;
}

// What is shown
function element(name, text, kind = "") {
  return Object.assign(document.createElement(name), { textContent: text, className: kind });
}

function verdictOf({ peak, reserved }, budget) {
  const room = bytesOf(budget);
  if (!budget.trim()) return element("p", "", "verdict");
  if (Number.isNaN(room)) return element("p", `${budget} is not a size: write one such as 8 GiB, 512 MiB or 2 GB.`, "verdict bad");
  if (reserved <= room) return element("p", `Fits: ${sized(room - peak)} of ${sized(room)} are left.`, "verdict good");
  if (peak > room) return element("p", `Does not fit: ${sized(peak - room)} more than ${sized(room)}.`, "verdict bad");
  return element("p", `May not fit: ${sized(room - peak)} are left at the peak, in pieces that may be too small. Run the command to see.`, "verdict bad");
}

function compared(peak, other) {
  if (other === undefined) return "";
  if (peak === other) return "As much as the other setting.";
  const digits = { maximumFractionDigits: 1 };
  const share = peak < 2 * other ? `${((100 * peak) / other).toLocaleString("en", digits)}% of` : `${(peak / other).toLocaleString("en", digits)} times`;
  return `${share} the other setting: ${shown(Math.abs(peak - other))} bytes ${peak < other ? "less" : "more"}.`;
}

/** Bytes in use after each event, stacked by category; `top`: the highest peak of both settings. */
function timeline({ at, heights, by_category: bytes, peak, phase, phases, events }, top) {
  const [width, full] = offered.box;
  const y = (height) => (full * (1 - (0.95 * height * peak) / full / top)).toFixed(1);
  let floor = at.map(() => 0);
  const paths = Object.keys(bytes).map((category, row) => {
    const ceiling = floor.map((height, column) => height + heights[row][column]);
    const there = ceiling.slice(1).map((height, column) => `H${at[column + 1]}V${y(height)}`).join("");
    const back = at.slice(1).map((_, column) => `V${y(floor[column])}H${at[column]}`).reverse().join("");
    const path = `<path fill="${offered.colours[category]}" d="M${at[0]} ${y(ceiling[0])}${there}${back}Z"><title>${category}</title></path>`;
    floor = ceiling;
    return path;
  });
  const figure = document.createElement("figure");
  const caption = `${shown(events)} allocations and frees of two steps, in order${top === peak ? "" : "; both settings have one scale"}`;
  const said = `Bytes in use after each of ${shown(events)} events of two steps, at most ${shown(peak)} in ${phase}`;
  figure.innerHTML = `<div class="scale" aria-hidden="true">${[top, top / 2, 0].map((size) => `<span>${sized(Math.round(size))}</span>`).join("")}</div>
<svg viewBox="0 0 ${width} ${full}" preserveAspectRatio="none" role="img" aria-label="${said}">${paths.join("")}
<line class="top" x1="0" x2="${width}" y1="${y(full)}" y2="${y(full)}"/></svg><div class="phases" aria-hidden="true"></div>
<div class="across">${caption}</div>`;
  figure.querySelector(".phases").append(...phases.map(([name, share]) => {
    const span = element("span", name === "user" ? "your code" : name);
    span.style.width = `${100 * share}%`;
    return span;
  }));
  return figure;
}

/** Phases have names where there is room for them. */
function fitPhases() {
  for (const span of document.querySelectorAll(".phases span")) span.classList.toggle("narrow", span.scrollWidth > span.clientWidth);
}

function categories({ by_category: bytes, peak }) {
  const table = document.createElement("table");
  table.innerHTML = `<thead><tr><th scope="col">at the peak</th><th scope="col" class="n">bytes</th><th scope="col" class="n">share</th></tr></thead>
<tbody>${Object.entries(bytes).map(([name, size]) => `<tr><th scope="row"><i style="background:${offered.colours[name]}"></i>${name}</th><td class="n">${shown(size)}</td><td class="n">${((100 * size) / peak).toFixed(1)}%</td></tr>`).join("")}</tbody>`;
  return table;
}

function show(section, answer, budget, top, other) {
  const found = section.querySelector(".found");
  if (answer.error) return found.replaceChildren(element("p", answer.error, "bad"));
  const peak = element("p", "", "peak");
  peak.setAttribute("role", "status");
  peak.append(element("b", `${shown(answer.peak)} bytes, ${sized(answer.peak)}`), element("span", `peak, in ${answer.phase}; reserved ${shown(answer.reserved)} bytes`, "quiet"));
  const command = answer.command.replace(/(?= # |$)/, Number.isNaN(bytesOf(budget)) ? "" : ` --budget "${budget.trim()}"`);
  const lines = [element("h3", "The command"), element("pre", command), element("h3", "The lines of a training script"), element("pre", answer.code)];
  found.replaceChildren(peak, element("p", compared(answer.peak, other), "compared"), verdictOf(answer, budget), timeline(answer, top), categories(answer), ...lines);
}

/** Shows all answers. Timelines have one scale, unless one would be too flat to read. */
function draw() {
  const top = Math.max(...Object.values(answers).map((each) => each.peak ?? 0));
  for (const section of pair.children) {
    const answer = answers[section.id];
    const [other] = [...pair.children].filter((each) => each !== section);
    if (answer) show(section, answer, settingOf(section).budget, 20 * answer.peak < top ? answer.peak : top, other && answers[other.id]?.peak);
  }
  fitPhases();
}

const keep = () => history.replaceState(null, "", `#${[...pair.children].map((each) => `${each.id}=${new URLSearchParams(settingOf(each))}`).join(";")}`);

/** Shows the form's setting. One question at a time, so that places that a slider has left are not asked for. */
const asked = {}; // by section; a budget needs no question
const asking = new Set();
async function ask(section) {
  const slider = section.querySelector("[type=range]");
  section.querySelector("output").textContent = valueOf(slider);
  slider.setAttribute("aria-valuetext", valueOf(slider));
  keep();
  if (asking.has(section)) return;
  asking.add(section);
  section.setAttribute("aria-busy", "true");
  for (;;) {
    const { budget, ...setting } = settingOf(section);
    if (asked[section.id] === JSON.stringify(setting)) break;
    asked[section.id] = JSON.stringify(setting);
    const answer = await answerOf(setting);
    if (!section.isConnected) return;
    answers[section.id] = answer;
    draw();
  }
  asking.delete(section);
  section.removeAttribute("aria-busy");
  draw();
}

function listen(section) {
  section.querySelector("form").addEventListener("input", () => ask(section));
  section.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
}

/** The second setting beside the first. */
function compare(setting) {
  const section = pair.firstElementChild.cloneNode(true);
  section.id = "b";
  section.querySelector("h2").textContent = "B";
  section.setAttribute("aria-label", "setting B");
  section.querySelector(".found").replaceChildren();
  pair.append(section);
  fill(section, setting);
  listen(section);
  second.textContent = "Remove the second setting";
  return ask(section);
}

function single() {
  pair.lastElementChild.remove();
  delete answers.b;
  delete asked.b;
  second.textContent = "Compare with a second setting";
  keep();
  draw();
}

async function begin() {
  const kept = Object.fromEntries(location.hash.slice(1).split(";").filter(Boolean).map((part) => {
    const at = part.indexOf("=");
    return [part.slice(0, at), Object.fromEntries(new URLSearchParams(part.slice(at + 1)))];
  }));
  const first = pair.firstElementChild;
  fill(first, offered.start);
  if (kept.a) fill(first, kept.a);
  listen(first);
  second.addEventListener("click", () => (pair.children.length > 1 ? single() : compare(settingOf(first))));
  addEventListener("resize", fitPhases);
  addEventListener("hashchange", () => location.reload());
  await ask(first);
  if (kept.b) await compare(kept.b);
}
begin();
