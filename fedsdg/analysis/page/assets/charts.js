// The sections with charts. Each fills its controls for the arena and draws; it can be called again.

// A newcomer minus each row of the record.
function standing() {
  const [one, metric] = ["newcomer", "newcomer-metric"].map(byId);
  fill(one, data.standing.map(({ title }, i) => [i, title]));
  const { newcomer, charts } = data.standing[one.value];
  fill(metric, charts.map(([title], i) => [i, title]));
  const rows = charts[metric.value][1].map((row) => ({ ...row, method: newcomer }));
  const drawn = { rows: looked(rows, arena().methods) };
  draw("chart-standing", "gaps", drawn, (spec) => (spec.height = 22 * rows.length + 20));
}

// Two methods against each other over the seeds that both have.
function bySeed(method, metric) {
  const { values } = method;
  const pairs = values.seeds.map((seed, i) => [seed, values[metric][i]]);
  return new Map(pairs.filter(([, value]) => value !== null));
}

function difference(first, second, what, pairs) {
  if (first === second) return "Choose two methods.";
  if (!pairs.length) return `${first.title} and ${second.title} share no seed with this number.`;
  const { n, mean, half } = interval(pairs.map(([, a, b]) => a - b));
  const shown = half === null ? "" : ` [${[mean - half, mean + half].map((end) => signed(end, 1)).join(", ")}]`;
  const [a, b] = [1, 2].map((side) => interval(pairs.map((pair) => pair[side])).mean.toFixed(1));
  return (
    `${first.title} − ${second.title}, ${what.title}: ${signed(mean, 1)} points${shown}, ` +
    `${n} paired seed${n === 1 ? "" : "s"} (${a} and ${b}).`
  );
}

function rivals() {
  const { methods, metrics } = arena();
  const selects = ["one", "other"].map(byId);
  const leading = methods.filter((method) => method.lead);
  selects.forEach((select, i) => fill(select, methods.map(({ label, title }) => [label, title]), leading[i]?.label));
  fill(byId("rival-metric"), metrics.map((m) => [m.key, m.title]));
  const both = selects.map((select) => methods.find((method) => method.label === select.value));
  const what = metrics.find((metric) => metric.key === byId("rival-metric").value);
  const [ours, theirs] = both.map((method) => bySeed(method, what.key));
  const seeds = [...ours.keys()].filter((seed) => theirs.has(seed)).sort((a, b) => a - b);
  const pairs = seeds.map((seed) => [seed, 100 * ours.get(seed), 100 * theirs.get(seed)]);
  byId("gap").textContent = difference(...both, what, pairs);
  const points = both.flatMap(({ title, look }, side) =>
    pairs.map((pair) => ({ seed: String(pair[0]), title, value: pair[side + 1], ...look })),
  );
  draw("chart-pairs", "pairs", { rows: points });
  const { colour } = both[0].look;
  const rows = pairs.map(([seed, a, b]) => ({ row: `seed ${seed}`, gap: a - b, colour, shape: "circle" }));
  if (rows.length) {
    const { mean, half } = interval(rows.map((row) => row.gap));
    const ends = { low: mean - (half ?? 0), high: mean + (half ?? 0) };
    rows.unshift({ row: "mean", gap: mean, ...ends, colour, shape: "diamond" });
  }
  draw("chart-gaps", "gaps", { rows });
}

// Accuracy of the methods that are switched on, against the cost that was chosen.
function curves() {
  const { curves: known, methods, metrics } = arena();
  fill(byId("curve-metric"), metrics.map((metric) => [metric.key, metric.title]));
  const columns = Object.entries(known[byId("curve-metric").value]);
  const rows = columns[0][1].map((_, i) => Object.fromEntries(columns.map(([name, values]) => [name, values[i]])));
  // A cost that no run recorded cannot be chosen.
  const costs = boxes(byId("cost"));
  costs.forEach((box) => (box.disabled = rows.every((row) => row[box.value] === null)));
  const cost = costs.find((box) => box.checked && !box.disabled) ?? costs[0];
  draw("chart-curves", `curves-${cost.value}`, { rows: looked(rows, legend(byId("curve-methods"), methods)) });
}

// Gates of one run: clients by blocks in a round, clients by rounds.
function gates() {
  const { gates: runs, methods } = arena();
  const [method, seed, measure, round] = ["gate-method", "gate-seed", "gate-measure", "gate-round"].map(byId);
  for (const part of [method.closest(".controls"), byId("chart-gates").parentElement]) part.hidden = !runs.length;
  if (!runs.length) {
    byId("gate-seen").textContent = "No method of this arena has gates that were learned.";
    return;
  }
  const labels = [...new Set(runs.map((run) => run.method))];
  fill(method, labels.map((label) => [label, methods.find((m) => m.label === label).title]));
  const own = runs.filter((run) => run.method === method.value);
  fill(seed, own.map((run) => [run.seed, run.seed]));
  const run = own.find((one) => String(one.seed) === seed.value);
  fill(measure, Object.entries(data.measures).filter(([key]) => key in run));
  round.max = run.rounds.length - 1;
  round.dataset.usual = round.max;
  restore(round);
  const at = Number(round.value);
  byId("gate-said").textContent = String(run.rounds[at]);
  const bytes = Uint8Array.from(atob(run[measure.value]), (letter) => letter.charCodeAt(0));
  const value = (r, c, b) => {
    const byte = bytes[(r * run.clients.length + c) * run.blocks + b];
    return byte === 255 ? null : byte / 100;
  };
  const clients = run.clients.map((number, c) => `${number} ${run.kinds[c]}`.trim());
  const numbers = [...Array(run.blocks).keys()];
  const blocks = clients.flatMap((client, c) =>
    numbers.map((b) => ({ client, kind: run.kinds[c], block: b + 1, value: value(at, c, b) })),
  );
  const ways = run.rounds.flatMap((number, r) =>
    clients.map((client, c) => {
      const own = numbers.map((b) => value(r, c, b));
      return { client, round: number, value: own.includes(null) ? null : mean(own) };
    }),
  );
  byId("gate-seen").textContent = seen(run.rounds[at], data.measures[measure.value], blocks);
  draw("chart-gates", "gates", { blocks, ways }, (spec, width) => {
    const narrow = width < 640;
    spec.hconcat.forEach((one, i) => {
      one.width = narrow ? width - 130 : (width - 210) * [0.4, 0.6][i];
      one.height = Math.max(14 * clients.length, 40);
    });
    if (narrow) {
      spec.vconcat = spec.hconcat;
      delete spec.hconcat;
      spec.config = { ...spec.config, legend: { ...spec.config.legend, orient: "top" } };
    }
  });
}

// What is to be seen in a round: means, how many are open, and in which block those lie.
function seen(round, what, fields) {
  const known = fields.filter((one) => one.value !== null);
  const open = known.filter((one) => one.value > 0.5);
  if (!known.length) return `Round ${round}: no client had been drawn.`;
  const percent = (some, all) => Math.round((100 * some.length) / all.length);
  const parts = [...new Set(known.map((one) => one.kind))].map((kind) => {
    const [own, ours] = [known, open].map((some) => some.filter((one) => one.kind === kind));
    const whose = kind ? `of ${kind} ` : "";
    return `${whose}${mean(own.map((one) => one.value)).toFixed(2)} on average, ${percent(ours, own)} % above one half`;
  });
  const inBlock = (block) => open.filter((one) => one.block === block);
  const [first] = open.map((one) => one.block).sort((a, b) => inBlock(b).length - inBlock(a).length);
  const where = open.length ? ` Of those above one half ${percent(inBlock(first), open)} % lie in block ${first}.` : "";
  return `Round ${round}, ${what}: ${parts.join("; ")}.${where}`;
}

// A small chart for each method that was searched; as many in a row as there is room.
function tuning() {
  const rows = data.tuning[arena().experiment];
  byId("tuning-none").hidden = rows.length > 0;
  byId("chart-tuning").parentElement.hidden = !rows.length;
  if (!rows.length) return;
  draw("chart-tuning", "tuning", { rows }, (spec, width) => {
    spec.columns = Math.max(2, Math.min(6, Math.floor(width / 190)));
    spec.spacing = 14;
    spec.spec.width = Math.floor((width - 50) / spec.columns) - 16;
  });
}

// Shares of the memory's speed, and times of ours and of other codes.
function speed() {
  const { where, rules, codes, sizes } = data.speeds;
  byId("speed-where").textContent = `Measured on ${where}.`;
  const on = legend(byId("speed-rules"), rules);
  for (const suite of ["clients", "parameters"]) {
    // The short form of the measurements does not have both.
    const rows = data.speeds[suite];
    byId(`chart-speed-${suite}`).parentElement.hidden = !rows.length;
    if (rows.length) draw(`chart-speed-${suite}`, `speed-${suite}`, { rows: looked(rows, on) });
  }
  fill(byId("speed-size"), sizes.map((one, i) => [i, one.title]));
  const { rows } = sizes[byId("speed-size").value];
  const height = 24 * new Set(rows.map((row) => row.rule)).size;
  draw("chart-codes", "codes", { rows }, (spec) => (spec.height = height));
  const dot = ({ colour }) => node("i", { class: "dot", style: `background: ${colour}` });
  byId("codes-legend").replaceChildren(...codes.map(({ title, look }) => node("label", {}, dot(look), title)));
}
