// Shares of the memory's speed, and times of ours and of other codes.
function roofline() {
  if (!data.speeds) return;
  const { where, rules, codes, sizes } = data.speeds;
  const chosen = new Map();
  const size = byId("speed-size");
  byId("speed-where").textContent = `Measured on ${where}.`;
  fill(size, sizes.map((one, i) => [i, one.title]));
  const show = () => {
    const on = new Set(rules.filter((one) => isOn(chosen, one)).map((one) => one.label));
    for (const suite of ["clients", "parameters"]) {
      // The short form of the measurements does not have both.
      const figure = byId(`chart-speed-${suite}`).parentElement;
      figure.hidden = !data.speeds[suite].length;
      if (figure.hidden) continue;
      const rows = () => looked(data.speeds[suite].filter((row) => on.has(row.method)), rules);
      draw(`chart-speed-${suite}`, `speed-${suite}`, rows);
    }
  };
  const showCodes = () => {
    const { rows } = sizes[size.value];
    const coloured = () => rows.map((row) => ({ ...row, colour: shade(row) }));
    draw("chart-codes", "codes", coloured, (spec) => {
      spec.height = 24 * new Set(rows.map((row) => row.rule)).size;
    });
  };
  const legend = () => {
    toggles(byId("speed-rules"), rules, chosen, show);
    const marks = codes.map((code) => node("span", {}, swatch(code, false), code.title));
    byId("codes-legend").replaceChildren(...marks);
  };
  onTheme(legend);
  size.addEventListener("change", showCodes);
  legend();
  show();
  showCodes();
}
