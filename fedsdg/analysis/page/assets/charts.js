// The sections with charts. Each fills its controls for the arena and draws; it can be called again.

// A newcomer minus each row of the record.
function standing() {
  const [one, metric] = ["standing-one", "standing-metric"].map(byId);
  fill(one, data.standing.map(({ title }, i) => [i, title]));
  const { newcomer, rows, metrics } = data.standing[one.value];
  fill(metric, metrics.map(([, title], i) => [i, title]));
  const look = arena().methods.find((method) => method.label === newcomer);
  draw("chart-standing", "gaps", () => ({
    rows: rows.map(({ title, of }) => ({ row: title, ...of[metric.value], colour: shade(look), shape: look.shape })),
  }), (spec) => (spec.height = 22 * rows.length + 20));
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
  const [one, other, metric] = ["one", "other", "rival-metric"].map(byId);
  const leading = methods.filter((method) => method.lead).map((method) => method.label);
  for (const [select, usual] of [[one, leading[0]], [other, leading[1]]]) {
    fill(select, methods.map((method) => [method.label, method.title]), usual);
  }
  fill(metric, metrics.map((m) => [m.key, m.title]));
  const [first, second] = [one, other].map((s) => methods.find((m) => m.label === s.value));
  const what = metrics.find((m) => m.key === metric.value);
  const [ours, theirs] = [first, second].map((m) => bySeed(m, what.key));
  const seeds = [...ours.keys()].filter((seed) => theirs.has(seed)).sort((a, b) => a - b);
  const pairs = seeds.map((seed) => [seed, 100 * ours.get(seed), 100 * theirs.get(seed)]);
  byId("gap").textContent = difference(first, second, what, pairs);
  draw("chart-pairs", "pairs", () => ({
    rows: [first, second].flatMap((method, side) =>
      pairs.map((pair) => ({
        seed: String(pair[0]), title: method.title, value: pair[side + 1], colour: shade(method), shape: method.shape,
      })),
    ),
  }));
  draw("chart-gaps", "gaps", () => {
    const colour = shade(first);
    const rows = pairs.map(([seed, a, b]) => ({ row: `seed ${seed}`, gap: a - b, colour, shape: "circle" }));
    if (!rows.length) return { rows };
    const { mean, half } = interval(rows.map((row) => row.gap));
    const ends = { low: mean - (half ?? 0), high: mean + (half ?? 0) };
    return { rows: [{ row: "mean", gap: mean, ...ends, colour, shape: "diamond" }, ...rows] };
  });
}

// Accuracy of the methods that are switched on, against the cost that was chosen.
function curves() {
  const { curves: known, methods, metrics } = arena();
  const metric = byId("curve-metric");
  fill(metric, metrics.map((m) => [m.key, m.title]));
  const on = legend(byId("curve-methods"), methods);
  const columns = known[metric.value];
  // A cost that no run recorded cannot be chosen.
  const costs = boxes(byId("cost"));
  costs.forEach((box) => (box.disabled = columns[box.value].every((value) => value === null)));
  const cost = costs.find((box) => box.checked && !box.disabled) ?? costs[0];
  draw("chart-curves", `curves-${cost.value}`, () => {
    const rows = columns.method.map((_, i) =>
      Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]])),
    );
    return { rows: looked(rows.filter((row) => on.has(row.method)), methods) };
  });
}

// Gates of one run: clients by blocks in a round, clients by rounds.
function gates() {
  const { gates: runs, methods } = arena();
  const [method, seed, measure, round] = ["gate-method", "gate-seed", "gate-measure", "gate-round"].map(byId);
  for (const id of ["gate-controls", "gate-charts"]) byId(id).hidden = !runs.length;
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
  const field = (r, c, b) => bytes[(r * run.clients.length + c) * run.blocks + b];
  const fields = run.clients.flatMap((client, c) =>
    Array.from({ length: run.blocks }, (_, b) => ({
      client: `${client}${run.kinds[c] && ` ${run.kinds[c]}`}`,
      kind: run.kinds[c],
      block: b + 1,
      value: field(at, c, b) === 255 ? null : field(at, c, b) / 100,
    })),
  );
  byId("gate-seen").textContent = seen(run.rounds[at], data.measures[measure.value], fields);
  const ways = run.rounds.flatMap((number, r) =>
    run.clients.map((_, c) => {
      const sum = Array.from({ length: run.blocks }, (_, b) => field(r, c, b)).reduce((x, y) => x + y, 0);
      const value = field(r, c, 0) === 255 ? null : sum / run.blocks / 100;
      return { client: fields[c * run.blocks].client, round: number, value };
    }),
  );
  draw("chart-gates", "gates", () => ({ blocks: fields, ways }), (spec, width) => {
    const narrow = width < 640;
    spec.hconcat.forEach((one, i) => {
      one.width = narrow ? width - 130 : (width - 210) * [0.4, 0.6][i];
      one.height = Math.max(14 * run.clients.length, 40);
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
  if (!known.length) return `Round ${round}: no client had been drawn.`;
  const parts = [...new Set(known.map((one) => one.kind))].map((kind) => {
    const own = known.filter((one) => one.kind === kind);
    const mean = own.reduce((sum, one) => sum + one.value, 0) / own.length;
    const open = own.filter((one) => one.value > 0.5).length / own.length;
    const whose = kind ? `of ${kind} ` : "";
    return `${whose}${mean.toFixed(2)} on average, ${Math.round(100 * open)} % above one half`;
  });
  const open = known.filter((one) => one.value > 0.5);
  const inBlock = (block) => open.filter((one) => one.block === block).length;
  const first = [...new Set(open.map((one) => one.block))].sort((a, b) => inBlock(b) - inBlock(a))[0];
  const where = open.length ? ` Of those above one half ${Math.round((100 * inBlock(first)) / open.length)} % lie in block ${first}.` : "";
  return `Round ${round}, ${what}: ${parts.join("; ")}.${where}`;
}

// A small chart for each method that was searched; as many in a row as there is room.
function tuning() {
  const rows = data.tuning[arena().experiment];
  byId("tuning-none").hidden = rows.length > 0;
  byId("chart-tuning").parentElement.hidden = !rows.length;
  if (!rows.length) return;
  const coloured = () => ({ rows: rows.map((row) => ({ ...row, colour: shade(row) })) });
  draw("chart-tuning", "tuning", coloured, (spec, width) => {
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
    const figure = byId(`chart-speed-${suite}`).parentElement;
    figure.hidden = !data.speeds[suite].length;
    if (figure.hidden) continue;
    const rows = () => looked(data.speeds[suite].filter((row) => on.has(row.method)), rules);
    draw(`chart-speed-${suite}`, `speed-${suite}`, () => ({ rows: rows() }));
  }
  const size = byId("speed-size");
  fill(size, sizes.map((one, i) => [i, one.title]));
  const { rows } = sizes[size.value];
  draw("chart-codes", "codes", () => ({ rows: rows.map((row) => ({ ...row, colour: shade(row) })) }), (spec) => {
    spec.height = 24 * new Set(rows.map((row) => row.rule)).size;
  });
  const marks = codes.map((code) => node("span", {}, node("i", { class: "dot", style: `background: ${shade(code)}` }), code.title));
  byId("codes-legend").replaceChildren(...marks);
}
