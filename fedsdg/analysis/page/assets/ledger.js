// The ledger: by verdict, specification and words.
function ledger() {
  const claims = byId("claims");
  if (!claims) return;
  sortable(claims);
  const rows = [...claims.tBodies[0].rows];
  const show = () => {
    const verdicts = new Set(
      [...document.querySelectorAll("#verdicts input:checked")].map((box) => box.value),
    );
    const words = byId("claim-find").value.trim().toLowerCase();
    const source = byId("source").value;
    for (const row of rows) {
      row.hidden =
        !verdicts.has(row.dataset.verdict) ||
        (source !== "" && row.dataset.source !== source) ||
        !row.textContent.toLowerCase().includes(words);
    }
    byId("claims-shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  };
  byId("verdicts").addEventListener("change", show);
  byId("claim-find").addEventListener("input", show);
  byId("source").addEventListener("change", show);
  show();
}
