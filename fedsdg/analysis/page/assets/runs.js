// The runs behind a number, or what a method does: a dialog that a click, Enter or Space opens.
const COUNTED = { bytes: ["MB sent", 1e6], steps: ["thousand local steps", 1e3] };

function quoted(label) {
  return /^[\w@%+=:,.\/-]+$/.test(label) ? label : `'${label.replaceAll("'", "'\\''")}'`;
}

function ofSeed(column, value) {
  if (value === null || value === undefined) return "–";
  if (column in COUNTED) return (value / COUNTED[column][1]).toLocaleString("en", { maximumFractionDigits: 3 });
  return (100 * value).toFixed(2);
}

function table(what, heads, rows) {
  const head = node("tr", {}, ...heads.map((text) => node("th", { scope: "col" }, text)));
  const body = rows.map((row) => node("tr", {}, ...row.map((cell) => node("td", {}, cell))));
  const made = node("table", {}, node("thead", {}, head), node("tbody", {}, ...body));
  return node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": what }, made);
}

function shortHash(hash) {
  return hash ? node("code", { title: hash }, hash.slice(0, 12)) : "–";
}

// How the runs are made again, in a checkout of their commit.
function again(where, label, { values, runs }) {
  const { one, all } = where.commands;
  if (!one) return [node("p", {}, `No config file of ${where.experiment} was at hand when this page was made.`)];
  const named = (command) => command.replaceAll("METHOD", quoted(label));
  const every = values.seeds.map((seed) => `seed~${seed}`).join(" ");
  const lines = `${named(one).replace("SEED", values.seeds[0] ?? 0)}\n${named(all).replace("SEEDS", every)}`;
  const how = runs.changes
    ? "Some were made with changes that no commit holds, so their code cannot be had again. In a checkout of today these make them anew, the first and all:"
    : "The first of them, and all of them; in a checkout of that commit:";
  return [node("p", { class: "note" }, how), node("pre", { id: "runs-command", tabindex: "0" }, lines)];
}

function behind(where, method, column) {
  const { values, runs, label } = method;
  const metric = where.metrics.find((one) => one.key === column);
  const what = metric ? `${metric.title} (%)` : column in COUNTED ? COUNTED[column][0] : "runs";
  const shown = column in values && column !== "seeds";
  const hashes = ["config", "partition", "backbone", "code"];
  const heads = ["seed", ...(shown ? [what] : []), ...hashes.map((name) => `${name} hash`)];
  const rows = values.seeds.map((seed, i) => [
    String(seed),
    ...(shown ? [ofSeed(column, values[column][i])] : []),
    ...hashes.map((name) => shortHash(runs[name][i])),
  ]);
  const made = [...new Set(runs.origin)].map((index) => {
    const seeds = values.seeds.filter((_, i) => runs.origin[i] === index).join(", ");
    return node("li", {}, `seeds ${seeds}: ${index < 0 ? "not recorded" : where.origins[index]}`);
  });
  const full = values.seeds.map((seed, i) =>
    [`seed ${seed}: ${runs.folder[i]}`, ...hashes.map((name) => `  ${name} ${runs[name][i] ?? "–"}`)].join("\n"),
  );
  return [
    what,
    node("p", {}, `${where.title}; ${values.seeds.length} runs, one a seed.`),
    table("Runs", heads, rows),
    node("h3", {}, "Where and when"),
    node("ul", { id: "runs-made" }, ...made),
    node("h3", {}, "To make them again"),
    ...again(where, label, method),
    node("details", {}, node("summary", {}, "Hashes in full"), node("pre", {}, full.join("\n"))),
  ];
}

function about(where, method) {
  const known = data.about[method.about];
  if (!known) return ["", node("p", {}, "A plugin brought this method; nothing is declared of it here.")];
  const variant = method.about === method.label ? [] : [node("p", {}, `A variant of ${known.title}: its values stand below the leaderboard.`)];
  return [
    "",
    node("p", {}, `Family: ${known.family}.`),
    ...variant,
    node("p", { class: "formula" }, known.formula),
    ...(known.keeps ? [node("p", {}, `Clients keep: ${known.keeps}`)] : []),
    node("p", {}, `Source: ${known.source}. In a config: `, node("code", {}, method.about), "."),
    ...(known.parameters.length ? [table("Parameters", ["parameter", "default", "meaning"], known.parameters)] : []),
  ];
}

// What the address says is open; nothing where it names no row of this arena.
function dialog() {
  const place = byId("runs");
  const [, label, column] = (state.get("open") ?? "").match(/^(.*) (\S+)$/) ?? [];
  const where = arena();
  const method = where.methods.find((one) => one.label === label);
  if (!method) {
    if (place.open) place.close();
    return;
  }
  const cell = document.querySelector(`.board:not([hidden]) tr[data-method="${CSS.escape(label)}"] [data-column="${CSS.escape(column)}"]`);
  const [what, ...body] = column === "method" ? about(where, method) : behind(where, method, column);
  const number = column === "method" || !cell ? "" : `: ${cell.textContent.trim()}`;
  byId("runs-title").textContent = `${method.title}${what && `, ${what}`}${number}`;
  byId("runs-body").replaceChildren(...body);
  if (!place.open) place.showModal();
}

function openOnClick() {
  const place = byId("runs");
  byId("leaderboard").addEventListener("click", (event) => {
    const button = event.target.closest(".number");
    if (!button) return;
    remember("open", [`${button.closest("tr").dataset.method} ${button.closest("td, th").dataset.column}`], true);
    dialog();
  });
  // Escape, the button, or a click beside the dialog close it; its own event comes later than these.
  const closed = () => state.has("open") && remember("open", [], true);
  for (const how of ["cancel", "submit", "close"]) place.addEventListener(how, closed);
  place.addEventListener("click", (event) => {
    if (event.target === place) place.close();
  });
}
