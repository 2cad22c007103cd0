"use strict";
// What all sections share: the data, what was chosen, and how a chart is drawn.
let data; // once it is unpacked
const byId = (id) => document.getElementById(id);
const arena = () => data.arenas.find((one) => one.id === byId("arena").value);

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// --- What was chosen in a control stands in the address by its id: #section?arena=…&sort=…&open=… ---
const CONTROLS = "select, fieldset, input[id]";
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
const checked = (fieldset) => boxes(fieldset).filter((box) => box.checked).map((box) => box.value);

// What a control says, or nothing where it says what it says at first.
function chosenIn(control) {
  if (control.tagName !== "FIELDSET") return control.value === (control.dataset.usual ?? "") ? [] : [control.value];
  if (boxes(control).every((box) => box.checked === box.defaultChecked)) return [];
  return checked(control).length ? checked(control) : [""];
}

function restore(control) {
  const values = state.getAll(control.id);
  if (control.tagName === "FIELDSET") {
    // Of another arena's methods some may not be here; of none of them is known what was meant.
    const known = boxes(control).some((box) => values.includes(box.value)) || values[0] === "";
    for (const box of boxes(control)) box.checked = known ? values.includes(box.value) : box.defaultChecked;
    return;
  }
  control.value = values[0] ?? control.dataset.usual ?? "";
  // A select refuses what is none of its options.
  if (control.tagName === "SELECT" && control.selectedIndex < 0) control.value = control.dataset.usual ?? "";
}

// The options of a select, of which one is usual; what was chosen before stays where it is there.
function fill(select, options, usual = options[0]?.[0]) {
  select.replaceChildren(...options.map(([value, text]) => node("option", { value }, text)));
  select.dataset.usual = usual ?? "";
  restore(select);
}

const signed = (value, digits) => {
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : (value > 0 ? "+" : "−") + text;
};

// --- Charts: the id of one → the promise of its view ---
const PLOTS = new Map();

const CONFIG = {
  background: null,
  view: { stroke: null },
  axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", gridOpacity: 0.6, titlePadding: 9 },
  header: { labelFontSize: 12 },
  legend: { labelFontSize: 11, gradientLength: 120 },
};

// Draw a specification with these data; `change` sets up a copy of it for the width that is there.
// One drawing follows the other, and what has been asked for anew meanwhile is left out.
function draw(id, name, datasets, change) {
  const here = byId(id);
  const former = PLOTS.get(id);
  const plot = {};
  PLOTS.set(id, plot);
  plot.done = Promise.resolve(former && former.done).then(async (view) => {
    if (PLOTS.get(id) !== plot) return view;
    const spec = structuredClone(data.specs[name]);
    spec.datasets = { ...spec.datasets, ...datasets };
    if (!spec.facet && !spec.hconcat) spec.autosize = { type: "fit-x", contains: "padding" };
    spec.config = CONFIG;
    if (change) change(spec, here.clientWidth);
    const made = await vegaEmbed(here, spec, { actions: false, renderer: "svg" });
    if (view) view.finalize();
    return made.view;
  });
}

// --- Checkboxes that are a legend as well; who is switched on, of those that lead at first ---
const line = ({ dash }) => (!dash.length ? "solid" : dash[0] < 4 ? "dotted" : "dashed");

// It is made anew only for other methods, so that the box under the keyboard stays.
function legend(fieldset, methods) {
  const key = methods.map((one) => one.label).join();
  if (fieldset.dataset.key !== key) {
    const labels = methods.map(({ label, title, lead, look }) => {
      const box = node("input", { type: "checkbox", value: label, checked: lead });
      const mark = node("i", { class: "swatch", style: `border-top: 3px ${line(look)} ${look.colour}` });
      return node("label", {}, box, mark, title);
    });
    fieldset.replaceChildren(fieldset.querySelector("legend"), ...labels);
    fieldset.dataset.key = key;
  }
  restore(fieldset);
  return methods.filter((one) => checked(fieldset).includes(one.label));
}

// The rows of these methods, the look of each row's method beside them.
function looked(rows, methods) {
  const known = new Map(methods.map((one) => [one.label, { title: one.title, ...one.look }]));
  return rows.filter((row) => known.has(row.method)).map((row) => ({ ...row, ...known.get(row.method) }));
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Mean and half-width of its 95 % Student-t interval, which is null where it is not shown.
function interval(values) {
  const [n, center] = [values.length, mean(values)];
  if (n < Math.max(2, data.constants.shown_from)) return { n, mean: center, half: null };
  const variance = mean(values.map((value) => (value - center) ** 2)) / (n - 1);
  return { n, mean: center, half: data.constants.quantiles[n] * Math.sqrt(variance) };
}
