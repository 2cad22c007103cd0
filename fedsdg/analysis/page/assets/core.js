"use strict";
// What all sections share: the data, what was chosen, the theme, and how a chart is drawn.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const arena = () => data.arenas.find((one) => one.id === byId("arena").value) || data.arenas[0];

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// --- What was chosen stands in the address: #section?arena=…&sort=…&open=… ---
let state = new URLSearchParams();
let place = "";

function readAddress() {
  const [before, after] = location.hash.slice(1).split("?");
  place = /^[\w-]*$/.test(before) ? before : "";
  state = new URLSearchParams(after);
}

// A step can be taken back by the browser's button; otherwise the address only keeps up.
function writeAddress(step = false) {
  const said = state.toString();
  const hash = `#${place}${said && `?${said}`}`;
  if (hash === (location.hash || "#")) return;
  const url = hash === "#" ? location.pathname + location.search : hash;
  history[step ? "pushState" : "replaceState"](null, "", url);
}

function remember(key, values, step = false) {
  state.delete(key);
  values.forEach((value) => state.append(key, value));
  writeAddress(step);
}

const boxes = (fieldset) => [...fieldset.querySelectorAll("input")];

// What a control says, or nothing where it says what it says at first.
function chosenIn(control) {
  if (control.tagName !== "FIELDSET") return control.value === (control.dataset.usual ?? "") ? [] : [control.value];
  if (boxes(control).every((box) => box.checked === box.defaultChecked)) return [];
  const on = boxes(control).filter((box) => box.checked).map((box) => box.value);
  return on.length ? on : [""];
}

function restore(control) {
  const values = state.getAll(control.dataset.state);
  if (control.tagName === "FIELDSET") {
    // Of another arena's methods some may not be here; of none of them is known what was meant.
    const known = boxes(control).some((box) => values.includes(box.value)) || values[0] === "";
    for (const box of boxes(control)) box.checked = known ? values.includes(box.value) : box.defaultChecked;
  } else if (control.tagName === "SELECT") {
    const options = [...control.options].map((option) => option.value);
    control.value = options.includes(values[0]) ? values[0] : control.dataset.usual ?? options[0] ?? "";
  } else {
    control.value = values[0] ?? control.dataset.usual ?? "";
  }
}

// The options of a select, of which one is usual; what was chosen before stays where it is there.
function fill(select, options, usual) {
  select.replaceChildren(...options.map(([value, text]) => node("option", { value }, text)));
  const values = options.map(([value]) => String(value));
  select.dataset.usual = values.includes(String(usual)) ? usual : values[0] ?? "";
  restore(select);
}

const isDark = () => document.documentElement.dataset.theme === "dark";
const shade = (look) => (isDark() ? look.dark : look.light);

const signed = (value, digits) => {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : (value > 0 ? "+" : "−") + text;
};

// A mean and, where there is one, its interval: "96.5 [95.0, 98.0]".
function said({ mean, low, high }) {
  if (mean === undefined) return "";
  const ends = high > low ? ` [${low.toFixed(1)}, ${high.toFixed(1)}]` : "";
  return mean.toFixed(1) + ends;
}

// Rows, and the look of each row's method beside them.
function looked(rows, methods) {
  const known = new Map(methods.map((one) => [one.label, one]));
  return rows.map((row) => {
    const look = known.get(row.method);
    const { title, dash, shape, width } = look;
    return { ...row, title, dash, shape, width, colour: shade(look), said: said(row) };
  });
}

// --- Charts: the id of one → how to draw it again, and the promise of its view ---
const PLOTS = new Map();

const CONFIG = {
  background: null,
  view: { stroke: null },
  axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", gridOpacity: 0.6, titlePadding: 9 },
  header: { labelFontSize: 12 },
  legend: { labelFontSize: 11, gradientLength: 120 },
  mark: { tooltip: true },
};

// Draw a specification with these data, and again when the theme changes. `change` sets up a copy of
// the specification for the width that is there. One drawing follows the other, and what has been
// asked for anew meanwhile is left out.
function draw(id, name, datasets, change) {
  const here = byId(id);
  const embed = async (former) => {
    const spec = structuredClone(data.specs[name]);
    spec.datasets = { ...spec.datasets, ...datasets() };
    if (!spec.facet && !spec.hconcat) spec.autosize = { type: "fit-x", contains: "padding" };
    spec.config = CONFIG;
    if (change) change(spec, here.clientWidth);
    const made = await vegaEmbed(here, spec, { actions: false, renderer: "svg" });
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

// --- Checkboxes that are a legend as well; who is switched on, of those that lead at first ---
const line = (look) => (!look.dash.length ? "solid" : look.dash[0] < 4 ? "dotted" : "dashed");

// It is made anew only for other methods or colours, so that the box under the keyboard stays.
function legend(fieldset, methods) {
  const key = methods.map((one) => one.label + shade(one)).join();
  if (fieldset.dataset.key !== key) {
    const labels = methods.map((one) => {
      const box = node("input", { type: "checkbox", value: one.label, checked: Boolean(one.lead) });
      const mark = node("i", { class: "swatch", style: `border-top: 3px ${line(one)} ${shade(one)}` });
      return node("label", {}, box, mark, one.title);
    });
    fieldset.replaceChildren(fieldset.querySelector("legend"), ...labels);
    fieldset.dataset.key = key;
  }
  restore(fieldset);
  return new Set(boxes(fieldset).filter((box) => box.checked).map((box) => box.value));
}

// Mean and 95 % Student-t interval; the interval is null where it is not shown.
function interval(values) {
  const n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  if (n < Math.max(2, data.constants.shown_from)) return { n, mean, half: null };
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const half = (data.constants.quantiles[n] * Math.sqrt(squares / (n - 1))) / Math.sqrt(n);
  return { n, mean, half };
}
