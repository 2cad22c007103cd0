// The runs behind a number, or what a method does: a dialog that a click, Enter or Space opens.
const COUNTED = { bytes: ["MB sent", 1e6], steps: ["thousand local steps", 1e3] };
const HASHES = ["config", "partition", "backbone", "code"];

const quoted = (label) => (/^[\w@%+=:,.\/-]+$/.test(label) ? label : `'${label.replaceAll("'", "'\\''")}'`);
const paragraph = (...parts) => node("p", {}, ...parts);

function ofSeed(column, value) {
  if (value === null) return "–";
  if (column in COUNTED) return (value / COUNTED[column][1]).toLocaleString("en", { maximumFractionDigits: 3 });
  return (100 * value).toFixed(2);
}

function table(what, heads, rows) {
  const head = node("tr", {}, ...heads.map((text) => node("th", { scope: "col" }, text)));
  const body = rows.map((row) => node("tr", {}, ...row.map((cell) => node("td", {}, cell))));
  const made = node("table", {}, node("thead", {}, head), node("tbody", {}, ...body));
  return node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": what }, made);
}

// How the runs are made again, in a checkout of their commit.
function again(where, label, { values, runs }) {
  const { one, all } = where.commands;
  if (!one) return [paragraph(`No config file of ${where.experiment} was at hand when this page was made.`)];
  const seeds = values.seeds.map((seed) => `seed~${seed}`).join(" ");
  const lines = [one.replace(/SEED$/, values.seeds[0] ?? 0), all.replace("SEEDS", seeds)];
  const how = runs.changes
    ? "Some were made with changes that no commit holds, so their code cannot be had again. In a checkout of today these make them anew, the first and all:"
    : "The first of them, and all of them; in a checkout of that commit:";
  const commands = lines.join("\n").replaceAll("METHOD", () => quoted(label));
  return [paragraph(how), node("pre", { id: "runs-command", tabindex: "0" }, commands)];
}

function behind(where, method, column) {
  const { values, runs, label } = method;
  const metric = where.metrics.find((one) => one.key === column);
  const what = metric ? `${metric.title} (%)` : column in COUNTED ? COUNTED[column][0] : "runs";
  const shown = what === "runs" ? [] : [what];
  const rows = values.seeds.map((seed, i) => [
    String(seed),
    ...shown.map(() => ofSeed(column, values[column][i])),
    ...HASHES.map((name) => node("code", { title: runs[name][i] }, runs[name][i]?.slice(0, 12) ?? "–")),
  ]);
  const made = [...new Set(runs.origin)].map((index) => {
    const seeds = values.seeds.filter((_, i) => runs.origin[i] === index).join(", ");
    return node("li", {}, `seeds ${seeds}: ${where.origins[index] ?? "not recorded"}`);
  });
  const full = values.seeds.flatMap((seed, i) => [
    `seed ${seed}: ${runs.folder[i]}`,
    ...HASHES.map((name) => `  ${name} ${runs[name][i] ?? "–"}`),
  ]);
  return [
    what,
    paragraph(`${where.title}; ${values.seeds.length} runs, one a seed.`),
    table("Runs", ["seed", ...shown, ...HASHES.map((name) => `${name} hash`)], rows),
    node("h3", {}, "Where and when"),
    node("ul", { id: "runs-made" }, ...made),
    node("h3", {}, "To make them again"),
    ...again(where, label, method),
    node("details", {}, node("summary", {}, "Hashes in full"), node("pre", {}, full.join("\n"))),
  ];
}

function about(method) {
  const known = data.about[method.about];
  if (!known) return ["", paragraph("A plugin brought this method; nothing is declared of it here.")];
  const parts = [
    paragraph(`Family: ${known.family}.`),
    method.about !== method.label && paragraph(`A variant of ${known.title}: its values stand below the leaderboard.`),
    node("p", { class: "formula" }, known.formula),
    known.keeps && paragraph(`Clients keep: ${known.keeps}`),
    paragraph(`Source: ${known.source}. In a config: `, node("code", {}, method.about), "."),
    known.parameters.length && table("Parameters", ["parameter", "default", "meaning"], known.parameters),
  ];
  return ["", ...parts.filter(Boolean)];
}

// What the address says is open; nothing where it names no row of this arena.
function dialog() {
  const place = byId("runs");
  const [, label, column] = (state.get("open") ?? "").match(/^(.*) (\S+)$/) ?? [];
  const method = arena().methods.find((one) => one.label === label);
  if (!method) return place.close();
  const row = document.querySelector(`.board:not([hidden]) tr[data-method="${CSS.escape(label)}"]`);
  const cell = row.querySelector(`td[data-column="${CSS.escape(column)}"]`);
  const [what, ...body] = column === "method" ? about(method) : behind(arena(), method, column);
  byId("runs-title").textContent = `${method.title}${what && `, ${what}`}${cell ? `: ${cell.textContent.trim()}` : ""}`;
  byId("runs-body").replaceChildren(...body);
  if (!place.open) place.showModal();
}

function openOnClick() {
  const place = byId("runs");
  byId("leaderboard").addEventListener("click", ({ target }) => {
    if (!target.matches(".number")) return;
    remember("open", [`${target.closest("tr").dataset.method} ${target.parentElement.dataset.column}`], true);
    dialog();
  });
  // Escape, the button, or a click beside the dialog close it; its own event comes later than these.
  const closed = () => state.has("open") && remember("open", [], true);
  for (const how of ["cancel", "submit", "close"]) place.addEventListener(how, closed);
  place.addEventListener("click", ({ target }) => target === place && place.close());
}
