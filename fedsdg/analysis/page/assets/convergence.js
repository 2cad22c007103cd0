// Curves of the methods that are switched on, against the cost that was chosen.
function convergence() {
  const metric = byId("curve-metric");
  const chosen = new Map();
  const show = () => {
    const { curves, methods } = arena();
    const on = new Set(methods.filter((one) => isOn(chosen, one)).map((one) => one.label));
    const columns = curves[metric.value];
    const cost = document.querySelector('input[name="cost"]:checked').value;
    draw("chart-convergence", `convergence-${cost}`, () => {
      const rows = columns.method.map((method, i) =>
        Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]])),
      );
      return looked(rows.filter((row) => on.has(row.method)), methods);
    });
  };
  metric.addEventListener("change", show);
  byId("cost").addEventListener("change", show);
  const legend = () => toggles(byId("curve-methods"), arena().methods, chosen, show);
  onTheme(legend);
  onArena(() => {
    fill(metric, arena().metrics.map((m) => [m.key, m.title]));
    legend();
    show();
  });
}
