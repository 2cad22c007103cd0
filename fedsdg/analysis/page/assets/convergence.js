// Curves of the methods that are switched on, against the cost that was chosen.
function convergence() {
  const metric = byId("curve-metric");
  const chosen = new Map();
  const show = () => {
    const { curves, methods } = arena();
    const on = new Set(methods.filter((one) => isOn(chosen, one)).map((one) => one.label));
    const columns = curves[metric.value];
    // A cost that no run recorded cannot be chosen.
    for (const box of document.querySelectorAll('input[name="cost"]')) {
      box.disabled = columns[box.value].every((value) => value === null);
      if (box.disabled && box.checked) document.querySelector('input[value="round"]').checked = true;
    }
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
