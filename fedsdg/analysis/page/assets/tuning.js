// A small chart for each method that was searched; as many in a row as there is room.
function tuning() {
  if (!byId("chart-tuning")) return;
  onArena(() => {
    const rows = data.tuning[arena().experiment];
    byId("tuning-none").hidden = rows.length > 0;
    byId("chart-tuning").parentElement.hidden = !rows.length;
    if (!rows.length) return;
    const coloured = () => rows.map((row) => ({ ...row, colour: shade(row) }));
    draw("chart-tuning", "tuning", coloured, (spec, width) => {
      spec.columns = Math.max(2, Math.min(6, Math.floor(width / 190)));
      spec.spacing = 14;
      spec.spec.width = Math.floor((width - 50) / spec.columns) - 16;
    });
  });
}
