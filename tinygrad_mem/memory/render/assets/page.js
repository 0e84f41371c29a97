// Draws the figures of each run from the page's numbers, and filters its table (tables.js). Asks nobody for anything.

const LEFT = 84, RIGHT = 12, TOP = 22, BOTTOM = 40; // pixels around a figure
const HEIGHT = 340;

/** A new HTML element in a place. */
function put(place, name, kind = "", text = "") {
  const made = Object.assign(document.createElement(name), { className: kind, textContent: text });
  place.append(made);
  return made;
}

/** A new element of a picture (SVG) in a place. */
function draw(place, name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  place.append(made);
  return made;
}

/** The first index of an ascending list whose value is greater. */
function above(list, value) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Round numbers between two, at most about so many; `unit` is 1, or that of a size. */
function ticks([low, high], most, unit) {
  const least = (high - low) / most / unit;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = unit * Math.max([1, 2, 5, 10].find((each) => each * power >= least) * power, 1 / unit);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
}

const unitOf = (bytes) => 1024 ** Math.max(0, Math.floor(Math.log2(bytes) / 10));

/** What a pointer is on, beside it, within its figure. */
class Tip {
  constructor(place) {
    this.place = place;
    this.box = put(place, "div", "tip");
    this.box.hidden = true;
    place.addEventListener("pointerleave", () => this.show(null));
  }

  /** `lines`: texts, each with the colour of a square before it or none; the first is bold. null: nothing. */
  show(lines, event) {
    this.box.hidden = !lines;
    if (!lines) return;
    this.box.replaceChildren();
    for (const [text, colour] of lines) {
      const line = put(this.box, this.box.firstChild ? "div" : "b");
      if (colour) put(line, "i").style.background = colour;
      line.append(text);
    }
    const around = this.place.getBoundingClientRect();
    const [x, y] = [event.clientX - around.left, event.clientY - around.top];
    const [width, height] = [this.box.offsetWidth, this.box.offsetHeight];
    this.box.style.left = `${Math.max(0, x + 14 + width > around.width ? x - 14 - width : x + 14)}px`;
    this.box.style.top = `${Math.max(0, Math.min(y + 14, around.height - height))}px`;
  }
}

/** A figure over the events of a run. `paint(figure)` draws what it shows; `words(figure, event)` are the lines of its tip. */
class Figure {
  constructor(run, place, top, paint, words) {
    Object.assign(this, { run, place, top, paint, words, range: [0, top] });
    this.picture = draw(place, "svg", { role: "img", "aria-label": place.dataset.said });
    this.tip = new Tip(place);
    this.picture.addEventListener("pointerdown", (event) => this.press(event));
    this.picture.addEventListener("pointermove", (event) => this.move(event));
    this.picture.addEventListener("pointerup", (event) => this.release(event));
    this.picture.addEventListener("dblclick", () => this.run.look(this.run.whole));
  }

  x(event) { // pixels of the moment after that many events
    const [from, to] = this.run.view;
    return LEFT + ((event - from) / (to - from)) * this.width;
  }

  y(bytes) {
    const [low, high] = this.range;
    return TOP + (1 - (bytes - low) / (high - low)) * this.height;
  }

  /** The moment, as a fraction, and the bytes under a pointer. */
  at({ clientX, clientY }) {
    const around = this.picture.getBoundingClientRect();
    const part = (value, [low, high]) => low + Math.min(Math.max(value, 0), 1) * (high - low);
    const across = (clientX - around.left - LEFT) / this.width, up = 1 - (clientY - around.top - TOP) / this.height;
    return [part(across, this.run.view), part(up, this.range)];
  }

  draw() {
    this.width = Math.max(this.place.clientWidth - LEFT - RIGHT, 1);
    this.height = HEIGHT - TOP - BOTTOM;
    this.picture.replaceChildren();
    this.picture.setAttribute("viewBox", `0 0 ${this.width + LEFT + RIGHT} ${HEIGHT}`);
    const [left, right] = [LEFT, LEFT + this.width], bottom = TOP + this.height;
    this.phases(bottom);
    for (const bytes of ticks(this.range, 8, unitOf(this.range[1]))) {
      draw(this.picture, "path", { class: "grid", d: `M${left} ${this.y(bytes)}H${right}` });
      draw(this.picture, "text", { x: left - 6, y: this.y(bytes) + 4, class: "end" }, sized(bytes).replace(".00", ""));
    }
    for (const event of ticks(this.run.view, this.width / 90, 1)) {
      draw(this.picture, "path", { class: "grid", d: `M${this.x(event)} ${TOP}V${bottom}` });
      draw(this.picture, "text", { x: this.x(event), y: bottom + 16, class: "middle" }, shown(event));
    }
    draw(this.picture, "text", { x: (left + right) / 2, y: HEIGHT - 6, class: "middle" }, "allocations and frees, in order");
    this.inside = draw(this.picture, "svg", { x: left, y: TOP, width: this.width, height: this.height });
    this.inside.setAttribute("viewBox", `${left} ${TOP} ${this.width} ${this.height}`);
    this.paint(this);
    this.cursor = draw(this.picture, "path", { class: "cursor" });
    this.chosen = draw(this.picture, "rect", { class: "chosen", width: 0 });
  }

  /** Every other phase on a darker ground; those that have room have their names above. */
  phases(bottom) {
    this.run.timeline.phases.forEach(([name, start, stop], number) => {
      const [a, b] = [start, stop].map((event) => Math.min(Math.max(this.x(event), LEFT), LEFT + this.width));
      if (number % 2) draw(this.picture, "rect", { class: "phase", x: a, y: TOP, width: b - a, height: bottom - TOP });
      if (b - a > name.length * 6.5 + 4) draw(this.picture, "text", { x: (a + b) / 2, y: TOP - 7, class: "middle" }, name);
    });
  }

  press(event) {
    this.picture.setPointerCapture(event.pointerId);
    this.from = event;
  }

  /** Marks what is chosen while a button is down; otherwise tells what is there. */
  move(event) {
    if (!this.from) return this.tip.show(this.words(this, event), event);
    const [[x0, x1], [y0, y1]] = this.corners(event);
    const box = { x: this.x(x0), y: this.y(y1), width: this.x(x1) - this.x(x0), height: this.y(y0) - this.y(y1) };
    for (const [key, value] of Object.entries(box)) this.chosen.setAttribute(key, value);
  }

  /** Moments and bytes between where a button went down and a pointer: all bytes, if it moved along the events. */
  corners(event) {
    const [[x0, y0], [x1, y1]] = [this.at(this.from), this.at(event)];
    const flat = Math.abs(event.clientY - this.from.clientY) < 20;
    return [[Math.min(x0, x1), Math.max(x0, x1)], flat ? this.range : [Math.min(y0, y1), Math.max(y0, y1)]];
  }

  release(event) {
    if (!this.from) return;
    const far = Math.abs(event.clientX - this.from.clientX) > 5, [view, range] = this.corners(event);
    this.from = null;
    if (!far) return;
    this.range = range[1] - range[0] < range[1] / 50 ? this.range : range; // below that, numbers of the axis would be equal
    this.run.look(view);
  }
}

/** The bytes of each category as areas, one above the other; the line is what is in use, and the dot its peak. */
function paintTimeline(figure) {
  const { timeline, view, hidden } = figure.run;
  const first = Math.max(above(timeline.at, view[0]) - 1, 0), last = Math.min(above(timeline.at, view[1]) + 1, timeline.at.length);
  const across = timeline.at.slice(first, last).map((event) => figure.x(event).toFixed(1));
  const steps = (bytes) => bytes.map((each, i) => `${i ? `H${across[i]}` : ""}V${figure.y(each).toFixed(1)}`).join("");
  let floor = across.map(() => 0);
  for (const [name, bytes] of Object.entries(timeline.bytes)) {
    if (hidden.has(name)) continue;
    const top = floor.map((below, i) => below + bytes[first + i]);
    const back = floor.map((below, i) => `V${figure.y(below).toFixed(1)}${i ? `H${across[i]}` : ""}`).reverse().join("");
    draw(figure.inside, "path", { fill: colours[name], d: `M${across[0]} ${figure.y(floor[0])}${steps(top)}${back}Z` });
    floor = top;
  }
  const used = timeline.used.slice(first, last);
  draw(figure.inside, "path", { class: "used", d: `M${across[0]} ${figure.y(used[0])}${steps(used)}` });
  const most = Math.max(...timeline.used), [x, y] = [figure.x(timeline.peak), figure.y(most)];
  if (timeline.peak < view[0] || timeline.peak > view[1] || y < TOP) return;
  const part = (x - LEFT) / figure.width, side = part > 0.75 ? "end" : part < 0.25 ? "start" : "middle"; // it stays inside
  draw(figure.picture, "circle", { cx: x, cy: y, r: 3.5 });
  draw(figure.picture, "text", { x, y: y - 9, class: `${side} label` }, `peak ${sized(most)}`);
}

function wordsOfTimeline(figure, event) {
  const { timeline } = figure.run;
  const i = Math.max(above(timeline.at, Math.round(figure.at(event)[0])) - 1, 0), at = timeline.at[i];
  figure.cursor.setAttribute("d", `M${figure.x(at)} ${TOP}v${figure.height}`);
  const parts = Object.entries(timeline.bytes).filter(([, bytes]) => bytes[i]);
  const lines = parts.map(([name, bytes]) => [`${name}: ${shown(bytes[i])} B`, colours[name]]).reverse();
  return [[`${shown(timeline.used[i])} B in use`], ...lines, [`after ${shown(at + 1)} allocations and frees`]];
}

function paintLives(figure) {
  const { lives, view, hidden } = figure.run;
  lives.start.forEach((start, i) => {
    if (start > view[1] || lives.stop[i] < view[0] || hidden.has(lives.category[i])) return;
    const [x, y] = [figure.x(start), figure.y(lives.low[i] + lives.bytes[i])];
    const size = { width: figure.x(lives.stop[i]) - x, height: figure.y(lives.low[i]) - y };
    draw(figure.inside, "rect", { x, y, ...size, fill: colours[lives.category[i]], "data-bar": i });
  });
}

function wordsOfLives(figure, { target }) {
  const { lives } = figure.run, i = target.dataset.bar;
  if (i === undefined) return null;
  const rest = lives.words[i].split("\n").map((line) => [line]);
  return [[`${shown(lives.bytes[i])} B, ${lives.category[i]}`, colours[lives.category[i]]], ...rest];
}

/** Boxes with these areas, the largest first, that fill a box: each nearly a square (Bruls, Huizing, van Wijk 2000). */
function squarified(sizes, [left, top, width, height]) {
  const boxes = [];
  let rest = sizes.reduce((a, b) => a + b, 0);
  for (let first = 0; first < sizes.length; ) {
    const side = Math.min(width, height), area = (width * height) / rest;
    const worst = (sum, least) => Math.max((side ** 2 * sizes[first]) / (sum ** 2 * area), (sum ** 2 * area) / (side ** 2 * least));
    let [last, sum] = [first + 1, sizes[first]];
    while (last < sizes.length && worst(sum + sizes[last], sizes[last]) <= worst(sum, sizes[last - 1])) sum += sizes[last++];
    const thick = (sum * area) / side;
    let along = 0;
    for (const size of sizes.slice(first, last)) {
      const long = (size / sum) * side;
      boxes.push(width >= height ? [left, top + along, thick, long] : [left + along, top, long, thick]);
      along += long;
    }
    if (width >= height) [left, width] = [left + thick, width - thick];
    else [top, height] = [top + thick, height - thick];
    [rest, first] = [rest - sum, last];
  }
  return boxes;
}

/** The modules of the peak and their blocks, each with its bytes, its parts and the colour of most of them. */
function tree(rows) {
  const root = { name: "peak", path: "", bytes: 0, parts: new Map(), sizes: new Map(), above: null };
  const grown = (node, key, name) => {
    if (!node.parts.has(key)) {
      node.parts.set(key, { name, path: [node.path, name].filter(Boolean).join("."), bytes: 0, parts: new Map(), sizes: new Map(), above: node });
    }
    return node.parts.get(key);
  };
  for (const [module, what, category, bytes] of rows) {
    const inner = (module || "no module").split(".").reduce((node, name) => grown(node, name, name), root);
    for (let node = grown(inner, `${category}: ${what}`, what); node; node = node.above) {
      node.bytes += bytes;
      node.sizes.set(category, (node.sizes.get(category) ?? 0) + bytes);
    }
  }
  return root;
}

const largest = (entries) => [...entries].sort((a, b) => b[1] - a[1])[0][0];

/** Black or white, whichever is read better on a colour (#rrggbb). */
function legible(ground) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(ground.slice(at, at + 2), 16) / 255);
  return 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2 > 0.18 ? "#000000" : "#ffffff";
}

/** The blocks of the peak as nested tiles: a click on a module shows what is in it, and the names above lead back. */
class Tiles {
  constructor(run, place) {
    Object.assign(this, { place, root: tree(run.peak) });
    this.node = this.root;
    this.path = put(place, "nav", "path");
    this.path.setAttribute("aria-label", "modules around the tiles");
    this.area = put(place, "div", "tiles");
    this.tip = new Tip(place);
    this.pen = document.createElement("canvas").getContext("2d");
  }

  draw() {
    this.path.replaceChildren();
    for (let node = this.node; node; node = node.above) {
      const way = Object.assign(document.createElement("button"), { type: "button", textContent: `${node.name}: ${shown(node.bytes)} B` });
      way.disabled = node === this.node;
      way.addEventListener("click", () => this.enter(node));
      this.path.prepend(way);
    }
    this.area.replaceChildren();
    this.pen.font = "12px system-ui, sans-serif";
    this.fill(this.node, [0, 0, this.area.clientWidth, this.area.clientHeight], this.area.clientWidth < 600 ? 4 : 99);
  }

  enter(node) {
    this.node = node;
    this.tip.show(null);
    this.draw();
  }

  fill(node, box, depth) {
    const parts = [...node.parts.values()].sort((a, b) => b.bytes - a.bytes);
    squarified(parts.map((part) => part.bytes), box).forEach((place, i) => this.tile(parts[i], place, depth));
  }

  tile(node, [x, y, width, height], depth) {
    if (width < 1.5 || height < 1.5) return;
    const module = node.parts.size > 0, colour = colours[largest(node.sizes)];
    const open = module && depth > 1;
    const tile = put(this.area, module ? "button" : "div", open ? "tile open" : "tile");
    Object.assign(tile.style, { left: `${x}px`, top: `${y}px`, width: `${width - 1}px`, height: `${height - 1}px` });
    tile.style.setProperty("--own", colour);
    if (module) tile.addEventListener("click", () => this.enter(node));
    if (!open) tile.style.color = legible(colour);
    const texts = module ? [node.name] : [node.name, `${shown(node.bytes)} B`];
    const room = (text, line) => this.pen.measureText(text).width + 8 < width && height > 17 * (line + 1);
    texts.filter(room).forEach((text) => put(tile, "span", "", text));
    if (module) tile.setAttribute("aria-label", `${node.path}: ${shown(node.bytes)} bytes`);
    const share = `${((node.bytes / this.root.bytes) * 100).toFixed(2)}% of the peak`;
    const kinds = [...node.sizes].sort((a, b) => b[1] - a[1]).map(([name, bytes]) => [`${name}: ${shown(bytes)} B`, colours[name]]);
    tile.addEventListener("pointermove", (event) => this.tip.show([[`${shown(node.bytes)} B`], [node.path], [share], ...kinds], event));
    if (open) this.fill(node, [x + 2, y + 19, width - 5, height - 22], depth - 1);
  }
}

/** One run: three figures, of which two share what stretch of the run they show. */
class Run {
  constructor(numbers, place, top) {
    Object.assign(this, numbers, { place, hidden: new Set() });
    this.whole = [0, Math.max(this.timeline.moments - 1, 1)];
    this.view = this.whole;
    const figure = (name, paint, words) => new Figure(this, place.querySelector(name), top, paint, words);
    this.figures = [figure(".timeline", paintTimeline, wordsOfTimeline), figure(".lives", paintLives, wordsOfLives)];
    this.tiles = new Tiles(this, place.querySelector(".peak"));
    this.tools();
    this.legend();
  }

  draw() {
    for (const each of [...this.figures, this.tiles]) each.draw();
  }

  /** Shows a stretch of the run; all of it, with all bytes, if that is asked for. */
  look([from, to]) {
    if (to - from < 2) return;
    const [least, most] = this.whole;
    this.view = [Math.max(from, least), Math.min(to, most)];
    for (const each of this.figures) {
      if (from <= least && to >= most) each.range = [0, each.top];
      each.draw();
    }
  }

  tools() {
    const place = this.place.querySelector(".tools");
    const moved = (by) => {
      const [from, to] = this.view, [least, most] = this.whole;
      const step = Math.max(least - from, Math.min(by * (to - from), most - to));
      return [from + step, to + step];
    };
    const scaled = (by) => {
      const [from, to] = this.view, middle = (from + to) / 2;
      return [middle - (by * (to - from)) / 2, middle + (by * (to - from)) / 2];
    };
    const ways = { "Zoom in": () => scaled(0.5), "Zoom out": () => scaled(2), Earlier: () => moved(-0.5), Later: () => moved(0.5), All: () => this.whole };
    for (const [name, way] of Object.entries(ways)) {
      Object.assign(put(place, "button", "", name), { type: "button" }).addEventListener("click", () => this.look(way()));
    }
    put(place, "span", "quiet", "Drag over a figure to enlarge; double-click to see all.");
  }

  /** The categories: a click on one hides its areas and bars, or shows them again. */
  legend() {
    const place = this.place.querySelector(".legend");
    for (const name of Object.keys(this.timeline.bytes)) {
      const way = Object.assign(put(put(place, "li"), "button"), { type: "button" });
      put(way, "i").style.background = colours[name];
      way.append(name);
      way.setAttribute("aria-pressed", "true");
      way.addEventListener("click", () => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        way.setAttribute("aria-pressed", String(!this.hidden.has(name)));
        for (const each of this.figures) each.draw();
      });
    }
  }
}

/** Hides the rows without the words, and says how many are left and their bytes; rows of many blocks know what these are only. */
function filter(input) {
  const run = input.closest(".run");
  const table = run.querySelector("table");
  const rows = matching(table, input.value);
  const bytes = rows.reduce((sum, row) => sum + Number(row.cells[0].dataset.n), 0);
  const said = run.querySelector(".shown");
  said.replaceChildren(`${shown(rows.length)} ${rows.length === 1 ? "row" : "rows"}, `, Object.assign(document.createElement("b"), { className: "sum", textContent: shown(bytes) }), " B");
  if (table.querySelector(".rest[hidden]")) said.append(" (the smaller blocks are found by what they are, not by name)");
}

let colours;
async function begin() {
  const found = await unpacked(document.getElementById("figures").textContent);
  ({ colours } = found);
  const ends = found.runs.flatMap(({ timeline, lives }) => [...timeline.used, ...lives.low.map((low, i) => low + lives.bytes[i])]);
  const top = ends.reduce((a, b) => Math.max(a, b)) * 1.15; // runs side by side have one scale
  const runs = found.runs.map((numbers, i) => new Run(numbers, document.getElementById(`run${i}`), top));
  const drawAll = () => runs.forEach((run) => run.draw());
  drawAll();
  window.addEventListener("resize", drawAll);
}

for (const input of document.querySelectorAll(".filter input")) input.addEventListener("input", () => filter(input));
begin();
