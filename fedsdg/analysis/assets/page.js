const data = JSON.parse(document.querySelector("#data").textContent);
const state = { arena: data.arenas[0], sort: "accuracy", descending: true, curve: "accuracy" };
const drawn = new Set(data.drawn);
/** Colours of methods that have none in the figures; those that charts name unasked take the first. */
const shades = ["#cc0030", "#003ce4", "#244800", "#fc5400", "#e454fc", "#9078fc", "#a80ccc", "#e4009c"];
const find = (selector) => document.querySelector(selector);

function element(tag, attributes = {}, ...children) {
  const drawing = ["svg", "g", "clipPath", "path", "circle", "text", "title"].includes(tag);
  const node = document.createElementNS(`http://www.w3.org/${drawing ? "2000/svg" : "1999/xhtml"}`, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function button(text, action, attributes = {}) {
  const node = element("button", { type: "button", ...attributes }, text);
  node.onclick = action;
  return node;
}

/** The head and the body of a table. */
const table = (heads, rows) => [element("thead", {}, element("tr", {}, ...heads)),
  element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells)))];

const print = (value, digits) => value.toFixed(digits).replace(/^-(?=.*[1-9])/, "−").replace("-", "");

function openSeeds({ title, text, seeds, commands }) {
  const heads = ["Seed", "Value", "Commit", "Run"].slice(0, seeds[0].length);
  const rows = seeds.map(([seed, value, ...run]) => [seed, String(+value.toPrecision(5)).replace("-", "−"), ...run]);
  const [head, body] = table(heads.map((name) => element("th", {}, name)),
    rows.map((row) => row.map((content) => element("td", {}, content))));
  find("#seeds").replaceChildren(element("form", { method: "dialog" }, element("button", {}, "Close")),
    element("h2", { id: "heading" }, title), element("p", {}, text),
    ...commands.filter(Boolean).map((command) => element("pre", {}, command)),
    element("div", { class: "scroll", tabindex: 0 }, element("table", {}, head, body)));
  find("#seeds").showModal();
}

/** A number that opens its seeds; a dash where there is none. */
function number(arena, label, key, attributes = {}) {
  const { seeds, runs, made, command, numbers } = arena.rows[label];
  const { title, unit, digits, trace } = data.metrics[key];
  if (!numbers[key]) return "–";
  const mean = print(numbers[key].mean, digits);
  const half = numbers[key].half === null ? "" : ` ±${print(numbers[key].half, digits)}`;
  const name = `${arena.key}/${label}`;
  const quoted = /^[\w@%+=:,./~-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
  return button(mean, () => openSeeds({
    title: `${data.methods[label].title}, ${arena.title}`,
    text: `${title}: ${mean}${half} ${unit}`,
    seeds: seeds.map((seed, i) => [seed, numbers[key].seeds[i], made[i], runs[i]]).filter((row) => row[1] !== null),
    commands: [`fedsdg trace ${quoted} ${trace}`, command],
  }), { class: "number", ...attributes });
}

const methodHead = (label, ...more) => element("th", { scope: "row" }, data.methods[label].title, ...more);

/** The regret map: redder is farther below the best. */
function drawMap() {
  const heads = data.arenas.map((arena) => element("th", { scope: "col" }, arena.title));
  const square = (arena, label) => {
    const regret = arena.rows[label]?.numbers.regret;
    if (!regret) return element("td");
    const style = `--share: ${Math.max(0, Math.min(100, 4 * regret.mean))}%; font-weight: ${regret.tied ? 700 : 400}`;
    return element("td", {}, number(arena, label, "regret", { style }));
  };
  const rows = data.map.map((label) => [methodHead(label), ...data.arenas.map((arena) => square(arena, label))]);
  find("#map").append(...table([element("td"), ...heads], rows));
}

/** Labels of the arena that pass the filter, in the chosen order; rows without the number come last. */
function shownMethods() {
  const { text, family, kind } = Object.fromEntries(new FormData(find("#filter")));
  const labels = Object.keys(data.methods).filter((label) => {
    const method = data.methods[label];
    return label in state.arena.rows && `${method.title} ${label}`.toLowerCase().includes(text.trim().toLowerCase())
      && [method.family, ""].includes(family) && [method.personal ? "personal" : "shared", ""].includes(kind);
  });
  if (state.sort === "method") return state.descending ? labels.reverse() : labels;
  const sign = state.descending ? -1 : 1;
  const value = (label) => state.arena.rows[label].numbers[state.sort]?.mean ?? sign * Infinity;
  return labels.sort((a, b) => sign * (value(a) - value(b)) || 0);
}

function sortBy(key) {
  state.descending = key === state.sort ? !state.descending : !["method", "megabytes", "regret"].includes(key);
  state.sort = key;
  drawBoard();
  find("#board [aria-sort$=ending] button").focus();
}

function drawBoard() {
  const heads = ["method", ...state.arena.columns].map((key) => {
    const { short, title } = data.metrics[key] ?? { short: "Method", title: "" };
    const sorted = key === state.sort ? (state.descending ? "descending" : "ascending") : "none";
    return element("th", { scope: "col", title, "aria-sort": sorted }, button(short, () => sortBy(key)));
  });
  const labels = shownMethods();
  const rows = labels.map((label) => {
    const { family, personal } = data.methods[label];
    const about = personal ? family : `${family}, one model`;
    return [methodHead(label, element("small", {}, about)), ...state.arena.columns.map((key) => {
      const half = state.arena.rows[label].numbers[key]?.half;
      const ends = half ? `±${print(half, data.metrics[key].digits)}` : "";
      return element("td", {}, number(state.arena, label, key), " ", element("small", {}, ends));
    })];
  });
  find("#board").replaceChildren(...table(heads, rows));
  find("#count").textContent = `${labels.length} of ${Object.keys(state.arena.rows).length} methods`;
}

/** Gives methods their looks: their colour in the figures or a shade, in dashes once all are taken. */
function addLooks() {
  const named = [...data.drawn, ...data.arenas.flatMap((arena) => arena.front)];
  const others = [...new Set([...named, ...Object.keys(data.methods)])].filter((label) => !data.methods[label].colour);
  for (const [label, method] of Object.entries(data.methods)) {
    const place = others.indexOf(label);
    const colour = method.colour ?? shades[place % shades.length];
    const lighter = `color-mix(in oklab, ${colour} 60%, white)`;
    method.colour = colour === "#000000" ? "var(--ink)" : `light-dark(${colour}, ${lighter})`;
    method.dash = place < shades.length ? "none" : `${4 * Math.floor(place / shades.length)} 3`;
  }
}

function ticks(low, high, count) {
  const power = 10 ** Math.floor(Math.log10((high - low) / count));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((width) => (high - low) / width <= count);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => +((first + i) * step).toPrecision(6));
}

/** Moves names down, given from the top, that others are in the way of; up again where the picture ends. */
function spread(names) {
  const gap = Math.min(14, 350 / names.length);
  const beside = (name, others, step) => others.filter((other) => other.left < name.right && name.left < other.right)
    .map((other) => other.y + step);
  names.forEach((name, i) => { name.y = Math.max(name.y, ...beside(name, names.slice(0, i), gap)); });
  names.reverse().forEach((name, i) => { name.y = Math.min(name.y, 364, ...beside(name, names.slice(0, i), -gap)); });
}

/** Draws lines: { title, colour, dash, strong, points: [[x, mean, low, high]] }. The strong ones have bands and names,
    and set the scale; the others are cut off where they leave the axes. */
function chart(host, lines, xTitle) {
  const scaling = lines.some((line) => line.strong) ? lines.filter((line) => line.strong) : lines;
  const points = scaling.flatMap((line) => line.points);
  const width = Math.max(300, Math.min(host.clientWidth, 960));
  const right = width - Math.min(190, width * 0.36);
  const most = Math.max(1, ...lines.flatMap((line) => line.points.map((point) => point[0])));
  const low = Math.min(100, ...points.map((point) => point[2] ?? point[1]));
  const high = Math.max(low + 1, ...points.map((point) => point[3] ?? point[1]));
  const x = (value) => 40 + (value / most) * (right - 40);
  const y = (value) => 360 - ((value - low) / (high - low)) * 330;
  const path = (places) => `M${places.map((place) => `${x(place[0]).toFixed(1)},${y(place[1]).toFixed(1)}`).join("L")}`;
  const svg = element("svg", { viewBox: `0 0 ${width} 400`, style: `max-width: ${width}px`, role: "img",
    "aria-label": `Accuracy by ${xTitle}` });
  host.replaceChildren(svg);
  const note = (text, place) => svg.append(element("text", { class: "axis", ...place }, text));
  for (const tick of ticks(low, high, 6)) {
    svg.append(element("path", { class: "grid", d: `M40,${y(tick)}H${right}` }));
    note(tick, { x: 34, y: y(tick) + 4, "text-anchor": "end" });
  }
  for (const tick of ticks(0, most, width / 90)) note(tick, { x: x(tick), y: 380, "text-anchor": "middle" });
  note("accuracy (%)", { x: 0, y: 14 });
  note(xTitle, { x: right, y: 397, "text-anchor": "end" });
  svg.append(element("clipPath", { id: `${host.id}-axes` }, element("path", { d: `M38,28H${right + 2}V362H38Z` })));
  const names = [];
  lines.sort((a, b) => a.strong - b.strong || b.points.at(-1)[1] - a.points.at(-1)[1]);
  for (const { title, colour, dash, strong, points: course } of lines) {
    const [endX, endY] = [x(course.at(-1)[0]), y(course.at(-1)[1])];
    const band = course.filter((point) => strong && point[2] !== null);
    const edge = [...band.map((point) => [point[0], point[2]]), ...band.map((point) => [point[0], point[3]]).reverse()];
    svg.append(element("g", { stroke: colour, fill: "none", "stroke-width": strong ? 2 : 1,
      "clip-path": strong ? "none" : `url(#${host.id}-axes)` },
      element("title", {}, `${title}: ${print(course.at(-1)[1], 1)} %`),
      element("path", { d: path(course), "stroke-dasharray": dash }),
      element("path", { d: edge.length ? path(edge) : "", fill: colour, stroke: "none", opacity: 0.13 }),
      element("circle", { cx: endX, cy: endY, r: strong ? 3 : 1, fill: colour })));
    if (!strong) continue;
    const left = endX + 8;
    const text = element("text", { x: left, fill: colour }, title);
    svg.append(text);
    for (let kept = title.length - 1; left + text.getComputedTextLength() > width; kept -= 1) {
      text.textContent = `${title.slice(0, kept)}…`;
    }
    names.push({ text, left, right: left + text.getComputedTextLength(), y: endY + 4 });
  }
  spread(names);
  for (const name of names) name.text.setAttribute("y", name.y);
  svg.append(...names.map((name) => name.text));
}

/** Both charts; a row of a curve is round, MB, mean, low, high. */
function drawCharts() {
  const lines = (metric, column, strong) => Object.entries(state.arena.curves[metric] ?? {}).map(([label, rows]) => ({
    title: data.methods[label].title,
    colour: strong(label) ? data.methods[label].colour : "var(--faint)",
    dash: strong(label) ? data.methods[label].dash : "none",
    strong: strong(label),
    points: rows.map((row) => [row[column], ...row.slice(2)]),
  }));
  chart(find("#budget"), lines("accuracy", 1, (label) => state.arena.front.includes(label)), "MB sent and received");
  chart(find("#rounds"), lines(state.curve, 0, (label) => drawn.has(label)).filter((line) => line.strong), "round");
}

function choose(arena) {
  Object.assign(state, { arena, curve: "accuracy" });
  for (const node of find("#arenas").children) node.setAttribute("aria-pressed", node.textContent === arena.title);
  find("#about").textContent = arena.about;
  find("#curve").replaceChildren(...Object.keys(arena.curves).map((key) =>
    element("option", { value: key }, data.metrics[key].short)));
  drawBoard();
  drawCharts();
}

find("#arenas").append(...data.arenas.map((arena) => button(arena.title, () => choose(arena))));
for (const [label, { title }] of Object.entries(data.methods)) {
  const box = element("input", { type: "checkbox", ...(drawn.has(label) ? { checked: "" } : {}) });
  box.onchange = () => {
    drawn[box.checked ? "add" : "delete"](label);
    drawCharts();
  };
  find("#chosen").append(element("label", {}, box, ` ${title}`));
}
find("#curve").onchange = ({ target }) => {
  state.curve = target.value;
  drawCharts();
};
for (const node of document.querySelectorAll("#claims .number, .first a")) {
  node.onclick = () => openSeeds(data.claims[node.hash?.slice(1) ?? node.parentNode.id]);
}
find("#filter").oninput = drawBoard;
find("#filter").onsubmit = (event) => event.preventDefault();
addEventListener("resize", drawCharts);
addLooks();
drawMap();
choose(state.arena);
