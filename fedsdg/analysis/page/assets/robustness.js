// Rules under one attack.
function robustness() {
  const attack = byId("attack");
  if (!attack) return;
  const chosen = new Map();
  fill(attack, data.attacks.map((one, i) => [i, one.title]));
  const show = () => {
    const { methods, rows, pilot } = data.attacks[attack.value];
    byId("pilot").textContent = pilot ? `A pilot: ${pilot}.` : "";
    const on = new Set(methods.filter((one) => isOn(chosen, one)).map((one) => one.label));
    draw("chart-attack", "attack", () => looked(rows.filter((row) => on.has(row.method)), methods));
  };
  const legend = () => toggles(byId("attack-methods"), data.attacks[attack.value].methods, chosen, show);
  onTheme(legend);
  attack.addEventListener("change", () => {
    legend();
    show();
  });
  legend();
  show();
}
