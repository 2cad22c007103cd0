"use strict";
// What all sections share: the data, the arena that was chosen, the theme, and how a chart is drawn.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
// The id of a chart → how to draw it again, and the promise of its view.
const PLOTS = new Map();
const listeners = [];

function arena() {
  return data.arenas.find((one) => one.id === byId("arena").value) || data.arenas[0];
}

// Sections that follow the arena say here how they fill themselves anew.
function onArena(fill) {
  listeners.push(fill);
}

// And those that draw something beside their charts in a theme's colours.
const themed = [];
function onTheme(again) {
  themed.push(again);
}

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// Options of a select; the former choice stays where it is still there.
function fill(select, options, preferred) {
  const former = select.value;
  select.replaceChildren(...options.map(([value, text]) => node("option", { value }, text)));
  const values = options.map(([value]) => String(value));
  if (values.includes(former)) select.value = former;
  else if (preferred !== undefined && values.includes(String(preferred))) select.value = preferred;
}

const isDark = () => document.documentElement.dataset.theme === "dark";
const shade = (look) => (isDark() ? look.dark : look.light);

// A mean and, where there is one, its interval: "96.5 [95.0, 98.0]".
function said({ mean, low, high }) {
  if (mean === undefined) return "";
  const ends = high > low ? ` [${low.toFixed(1)}, ${high.toFixed(1)}]` : "";
  return mean.toFixed(1) + ends;
}

// Rows of columns, and the look of each row's method beside them.
function looked(rows, methods) {
  const known = new Map(methods.map((one) => [one.label, one]));
  return rows.map((row) => {
    const look = known.get(row.method);
    const { title, dash, shape, width } = look;
    return { ...row, title, dash, shape, width, colour: shade(look), said: said(row) };
  });
}

function config() {
  const axis = { labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", gridOpacity: 0.6, titlePadding: 9 };
  return {
    background: null,
    view: { stroke: null },
    axis,
    header: { labelFontSize: 12 },
    legend: { labelFontSize: 11, gradientLength: 120 },
    mark: { tooltip: true },
  };
}

// Draw a specification with these rows, and again when the theme changes. `change` may set up a copy
// of the specification for the width that is there. One drawing follows the other, and what has
// been asked for anew meanwhile is left out.
function draw(id, name, rows, change) {
  const place = byId(id);
  const embed = async (former) => {
    const spec = structuredClone(data.specs[name]);
    spec.datasets = { ...spec.datasets, rows: rows() };
    if (!spec.facet) spec.autosize = { type: "fit-x", contains: "padding" };
    spec.config = config();
    if (change) change(spec, place.clientWidth);
    const made = await vegaEmbed(place, spec, { actions: false, renderer: "svg" });
    if (former) former.finalize();
    return made.view;
  };
  const again = () => {
    const former = PLOTS.get(id);
    const plot = { again };
    PLOTS.set(id, plot);
    plot.done = Promise.resolve(former && former.done).then((view) =>
      PLOTS.get(id) === plot ? embed(view) : view,
    );
  };
  again();
}

function drawAllAgain() {
  for (const plot of PLOTS.values()) plot.again();
}

const SHAPES = {
  circle: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
  square: "M-3.5,-3.5H3.5V3.5H-3.5Z",
  diamond: "M0,-4.5L4.5,0L0,4.5L-4.5,0Z",
  "triangle-up": "M0,-4L4.5,3.5H-4.5Z",
  "triangle-down": "M0,4L4.5,-3.5H-4.5Z",
  "triangle-left": "M-4,0L3.5,-4.5V4.5Z",
  "triangle-right": "M4,0L-3.5,-4.5V4.5Z",
  cross: "M-4,-1.5H-1.5V-4H1.5V-1.5H4V1.5H1.5V4H-1.5V1.5H-4Z",
};

// The line and shape of a look, as a legend has them.
function swatch(look, line = true) {
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("viewBox", "-15 -6 30 12");
  drawing.setAttribute("aria-hidden", "true");
  const path = (d, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
    made.setAttribute("d", d);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    drawing.append(made);
  };
  if (line) {
    const dashes = (look.dash || []).join(" ");
    path("M-15,0H15", { stroke: shade(look), "stroke-width": 2, "stroke-dasharray": dashes });
  }
  const [outline, scale] = look.shape in SHAPES ? [SHAPES[look.shape], 1] : [look.shape, 4.5];
  path(outline, { fill: shade(look), transform: `scale(${scale})` });
  return drawing;
}

// Checkboxes that are a legend as well. Who was switched on stays so in the next arena; before
// anybody chooses, those that lead are.
function toggles(place, methods, chosen, changed) {
  const boxes = methods.map((one) => {
    const on = chosen.has(one.label) ? chosen.get(one.label) : one.lead;
    const box = node("input", { type: "checkbox", value: one.label });
    box.checked = on;
    box.addEventListener("change", () => {
      chosen.set(one.label, box.checked);
      changed();
    });
    return node("label", {}, box, swatch(one), one.title);
  });
  place.replaceChildren(place.querySelector("legend"), ...boxes);
}

function isOn(chosen, one) {
  return chosen.has(one.label) ? chosen.get(one.label) : one.lead;
}

const signed = (value, digits) => {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : (value > 0 ? "+" : "−") + text;
};

// Mean and 95 % Student-t interval; the interval is null where it is not shown.
function interval(values) {
  const n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  if (n < Math.max(2, data.constants.shown_from)) return { n, mean, half: null };
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const half = (data.constants.quantiles[n] * Math.sqrt(squares / (n - 1))) / Math.sqrt(n);
  return { n, mean, half };
}
