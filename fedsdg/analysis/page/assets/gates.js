// Heat maps of one run: clients by blocks in a round, clients by rounds.
function unpacked(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function gates() {
  const [method, seed, measure, round] = ["gate-method", "gate-seed", "gate-measure", "gate-round"].map(byId);
  if (!method) return;
  const chosen = () =>
    arena().gates.find((run) => run.method === method.value && String(run.seed) === seed.value);
  const show = () => {
    const run = chosen();
    const bytes = unpacked(run[measure.value]);
    const { clients, kinds, blocks, rounds } = run;
    const name = (c) => `${clients[c]}${kinds[c] && ` ${kinds[c]}`}`;
    const value = (r, c, b) => bytes[(r * clients.length + c) * blocks + b];
    const height = (spec) => (spec.height = 14 * clients.length);
    const at = Number(round.value);
    byId("gate-said").textContent = String(rounds[at]);
    draw("chart-blocks", "blocks", () => {
      const rows = [];
      for (let c = 0; c < clients.length; c++) {
        for (let b = 0; b < blocks; b++) {
          const one = value(at, c, b);
          rows.push({ client: name(c), block: b + 1, value: one === 255 ? null : one / 100 });
        }
      }
      return rows;
    }, height);
    draw("chart-ways", "ways", () => {
      const rows = [];
      for (let r = 0; r < rounds.length; r++) {
        for (let c = 0; c < clients.length; c++) {
          let sum = 0;
          for (let b = 0; b < blocks; b++) sum += value(r, c, b);
          const none = value(r, c, 0) === 255;
          rows.push({ client: name(c), round: rounds[r], value: none ? null : sum / blocks / 100 });
        }
      }
      return rows;
    }, height);
  };
  const fillRun = () => {
    const run = chosen();
    fill(measure, Object.entries(data.measures).filter(([key]) => key in run));
    const last = run.rounds.length - 1;
    round.max = last;
    round.value = last;
    show();
  };
  const fillSeeds = () => {
    const seeds = arena().gates.filter((run) => run.method === method.value).map((run) => run.seed);
    fill(seed, seeds.map((one) => [one, one]));
    fillRun();
  };
  method.addEventListener("change", fillSeeds);
  seed.addEventListener("change", fillRun);
  measure.addEventListener("change", show);
  round.addEventListener("input", show);
  onArena(() => {
    const { gates: runs, methods } = arena();
    for (const id of ["gate-controls", "gate-charts"]) byId(id).hidden = !runs.length;
    byId("gate-none").hidden = runs.length > 0;
    if (!runs.length) return;
    const labels = [...new Set(runs.map((run) => run.method))];
    fill(method, labels.map((label) => [label, methods.find((m) => m.label === label).title]));
    fillSeeds();
  });
}
