// The runs behind a number: a dialog that a click, Enter or Space opens, and Escape closes.
const COUNTED = { bytes: ["MB sent", 1e6], steps: ["thousand local steps", 1e3] };

function quoted(label) {
  return /^[\w@%+=:,.\/-]+$/.test(label) ? label : `'${label}'`;
}

function ofSeed(column, value) {
  if (value === null || value === undefined) return "–";
  if (column in COUNTED) return (value / COUNTED[column][1]).toLocaleString("en", { maximumFractionDigits: 3 });
  return (100 * value).toFixed(2);
}

function table(heads, rows) {
  const head = node("tr", {}, ...heads.map((text) => node("th", { scope: "col" }, text)));
  const body = rows.map((row) =>
    node("tr", {}, ...row.map((cell) => (cell instanceof Node ? node("td", {}, cell) : node("td", {}, cell)))),
  );
  const made = node("table", {}, node("thead", {}, head), node("tbody", {}, ...body));
  return node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" }, made);
}

function shortHash(hash) {
  return hash ? node("code", { title: hash }, hash.slice(0, 12)) : "–";
}

function showRuns(where, label, column, text) {
  const method = where.methods.find((one) => one.label === label);
  const metric = where.metrics.find((one) => one.key === column);
  const { values, runs } = method;
  const what = metric ? `${metric.title} (%)` : column in COUNTED ? COUNTED[column][0] : "runs";
  const shown = column in values && column !== "seeds";
  byId("runs-title").textContent = `${method.title}, ${what}: ${text}`;
  const hashes = ["config", "partition", "backbone", "code"];
  const heads = ["seed", ...(shown ? [what] : []), ...hashes.map((name) => `${name} hash`)];
  const rows = values.seeds.map((seed, i) => [
    String(seed),
    ...(shown ? [ofSeed(column, values[column][i])] : []),
    ...hashes.map((name) => shortHash(runs[name][i])),
  ]);
  const body = [node("p", {}, `${where.title}; ${values.seeds.length} runs, one a seed.`), table(heads, rows)];

  const made = node("ul", { id: "runs-made" });
  for (const index of new Set(runs.origin)) {
    const seeds = values.seeds.filter((_, i) => runs.origin[i] === index).join(", ");
    const how = index < 0 ? "not recorded" : where.origins[index];
    made.append(node("li", {}, `seeds ${seeds}: ${how}`));
  }
  body.push(node("h3", {}, "Where and when"), made, node("h3", {}, "To make them again"));
  const { one, all } = where.commands;
  if (one) {
    const named = (command) => command.replaceAll("METHOD", quoted(label));
    const every = values.seeds.map((seed) => `seed~${seed}`).join(" ");
    const first = named(one).replace("SEED", values.seeds[0] ?? 0);
    const lines = `${first}\n${named(all).replace("SEEDS", every)}`;
    body.push(node("p", { class: "note" }, "The first of them, and all of them; in a checkout of that commit:"));
    body.push(node("pre", { id: "runs-command", tabindex: "0" }, lines));
  } else {
    body.push(node("p", {}, `No config file of ${where.experiment} was at hand when this page was made.`));
  }
  const full = values.seeds.map((seed, i) =>
    [`seed ${seed}: ${runs.folder[i]}`, ...hashes.map((name) => `  ${name} ${runs[name][i] ?? "–"}`)].join("\n"),
  );
  const details = node("details", {}, node("summary", {}, "Hashes in full"), node("pre", {}, full.join("\n")));
  body.push(details);
  byId("runs-body").replaceChildren(...body);
  byId("runs").showModal();
}

function provenance() {
  const dialog = byId("runs");
  byId("leaderboard").addEventListener("click", (event) => {
    const button = event.target.closest(".number");
    if (!button) return;
    const board = button.closest(".board");
    const where = data.arenas.find((one) => one.id === board.dataset.arena);
    const label = button.closest("tr").dataset.method;
    showRuns(where, label, button.closest("td").dataset.column, button.textContent);
  });
  // A click beside the dialog closes it.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}
