// Tables: sorted by a column, filtered by family, words and verdict, rows hidden.
function numberOf(text) {
  return text.trim() === "" || Number.isNaN(Number(text)) ? null : Number(text);
}

// What is missing stands last in either direction; equal rows keep their order.
function sortBy(table, head, direction) {
  const heads = [...head.parentElement.children];
  const at = heads.indexOf(head);
  const key = (row) => row.children[at].dataset.sort ?? row.children[at].textContent;
  heads.forEach((one) => one.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    if (!head.classList.contains("n")) return sign * key(a).localeCompare(key(b), "en");
    const [x, y] = [numberOf(key(a)), numberOf(key(b))];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (x - y);
  });
  table.tBodies[0].append(...rows);
}

// The direction of a click on a heading: numbers fall at first, words rise; then the other.
function nextDirection(head) {
  const opposite = { ascending: "descending", descending: "ascending" };
  return opposite[head.getAttribute("aria-sort")] ?? (head.classList.contains("n") ? "descending" : "ascending");
}

function sortOnClick() {
  document.addEventListener("click", (event) => {
    const head = event.target.closest("thead th");
    if (!head || !event.target.closest("button")) return;
    const direction = nextDirection(head);
    if (head.closest(".board")) {
      remember("sort", [`${head.dataset.column} ${direction}`]);
      leaderboard();
    } else {
      sortBy(head.closest("table"), head, direction);
    }
  });
}

// The board of the arena, by the column, the families, the words and the hidden rows that were chosen.
function leaderboard() {
  const families = new Set(boxes(byId("families")).filter((box) => box.checked).map((box) => box.value));
  const words = byId("find").value.trim().toLowerCase();
  const hidden = new Set(state.getAll("hide"));
  for (const board of document.querySelectorAll(".board")) {
    board.hidden = board.dataset.arena !== arena().id;
    if (board.hidden) continue;
    const heads = [...board.querySelectorAll("thead th[data-column]")];
    const [column, direction] = (state.get("sort") ?? "").split(" ");
    const head = heads.find((one) => one.dataset.column === column);
    sortBy(board.querySelector("table"), head ?? heads[1], (head && direction) || "descending");
    for (const row of board.querySelectorAll("tr[data-method]")) {
      const { method, family } = row.dataset;
      const name = row.cells[0].textContent.toLowerCase();
      row.hidden = hidden.has(method) || !families.has(family) || !(name.includes(words) || method.includes(words));
    }
  }
  byId("restore").hidden = hidden.size === 0;
  byId("restore").textContent = `Show hidden rows (${hidden.size})`;
}

function hideOnClick() {
  byId("restore").addEventListener("click", () => {
    remember("hide", []);
    leaderboard();
    byId("find").focus();
  });
  byId("leaderboard").addEventListener("click", (event) => {
    const button = event.target.closest(".hide");
    if (!button) return;
    const row = button.closest("tr");
    const next = row.nextElementSibling || row.previousElementSibling;
    remember("hide", [...state.getAll("hide"), row.dataset.method]);
    leaderboard();
    if (next) next.querySelector(".hide").focus();
  });
}

function ledger() {
  const verdicts = new Set(boxes(byId("verdicts")).filter((box) => box.checked).map((box) => box.value));
  const words = byId("claim-find").value.trim().toLowerCase();
  const source = byId("source").value;
  const rows = [...byId("claims").tBodies[0].rows];
  for (const row of rows) {
    row.hidden =
      !verdicts.has(row.dataset.verdict) ||
      (source !== "" && row.dataset.source !== source) ||
      !row.textContent.toLowerCase().includes(words);
  }
  byId("claims-shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
}
