// Two methods against each other over the seeds that both have.
function bySeed(method, metric) {
  const { values } = method;
  const pairs = values.seeds.map((seed, i) => [seed, values[metric][i]]);
  return new Map(pairs.filter(([, value]) => value !== null));
}

function rivals() {
  const [one, other, metric] = ["one", "other", "rival-metric"].map(byId);
  const show = () => {
    const { methods, metrics } = arena();
    const [first, second] = [one, other].map((s) => methods.find((m) => m.label === s.value));
    const what = metrics.find((m) => m.key === metric.value);
    const [ours, theirs] = [first, second].map((m) => bySeed(m, what.key));
    const seeds = [...ours.keys()].filter((seed) => theirs.has(seed)).sort((a, b) => a - b);
    const gaps = seeds.map((seed) => 100 * (ours.get(seed) - theirs.get(seed)));
    if (first === second || !seeds.length) {
      byId("gap").textContent =
        first === second ? "Choose two methods." : `${first.title} and ${second.title} share no seed with this number.`;
    } else {
      const found = interval(gaps);
      const ends = [-1, 1].map((sign) => signed(found.mean + sign * found.half, 1));
      const shown = found.half === null ? "" : ` [${ends.join(", ")}]`;
      const [a, b] = [ours, theirs].map((m) => interval(seeds.map((seed) => 100 * m.get(seed))).mean.toFixed(1));
      byId("gap").textContent =
        `${first.title} − ${second.title}, ${what.title}: ${signed(found.mean, 1)} points${shown}, ` +
        `${found.n} paired seed${found.n === 1 ? "" : "s"} (${a} and ${b}).`;
    }
    draw("chart-pairs", "pairs", () =>
      [[first, ours], [second, theirs]].flatMap(([method, values]) =>
        seeds.map((seed) => ({
          seed: String(seed), title: method.title, value: 100 * values.get(seed),
          colour: shade(method), shape: method.shape,
        })),
      ),
    );
    draw("chart-gaps", "gaps", () => {
      const colour = shade(first);
      const rows = seeds.map((seed, i) => ({ row: `seed ${seed}`, gap: gaps[i], colour, shape: "circle" }));
      if (!gaps.length) return rows;
      const { mean, half } = interval(gaps);
      const low = mean - (half ?? 0);
      const high = mean + (half ?? 0);
      return [{ row: "mean", gap: mean, low, high, colour, shape: "diamond" }, ...rows];
    });
  };
  [one, other, metric].forEach((select) => select.addEventListener("change", show));
  onArena(() => {
    const { methods, metrics } = arena();
    const options = methods.map((m) => [m.label, m.title]);
    const leading = methods.filter((m) => m.lead).map((m) => m.label);
    fill(one, options, leading[0]);
    fill(other, options, leading[1]);
    fill(metric, metrics.map((m) => [m.key, m.title]));
    show();
  });
}
