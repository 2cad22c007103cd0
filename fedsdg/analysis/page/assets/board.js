// Tables: sort by a column, filter by family and name, hide rows.
function numberOf(text) {
  return text.trim() === "" || Number.isNaN(Number(text)) ? null : Number(text);
}

// What is missing stands last in either direction; equal rows keep their order.
function sortBy(table, head) {
  const heads = [...head.parentElement.children];
  const column = heads.indexOf(head);
  const key = (row) => row.children[column].dataset.sort ?? row.children[column].textContent;
  const rows = [...table.tBodies[0].rows];
  const numeric = head.classList.contains("n");
  const first = numeric ? "descending" : "ascending";
  const former = head.getAttribute("aria-sort");
  const opposite = { ascending: "descending", descending: "ascending" };
  const direction = former ? opposite[former] : first;
  heads.forEach((one) => one.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  rows.sort((a, b) => {
    if (!numeric) return sign * key(a).localeCompare(key(b), "en");
    const [x, y] = [numberOf(key(a)), numberOf(key(b))];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (x - y);
  });
  table.tBodies[0].append(...rows);
}

function sortable(table) {
  table.tHead.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) sortBy(table, button.closest("th"));
  });
}

function leaderboard() {
  const boards = [...document.querySelectorAll(".board")];
  const hidden = new Set();
  const show = () => {
    const families = new Set(
      [...document.querySelectorAll("#families input:checked")].map((box) => box.value),
    );
    const words = byId("find").value.trim().toLowerCase();
    for (const row of document.querySelectorAll(".board tbody tr")) {
      const name = row.cells[0].textContent.toLowerCase();
      const label = row.dataset.method;
      row.hidden =
        hidden.has(label) ||
        !families.has(row.dataset.family) ||
        !(name.includes(words) || label.includes(words));
    }
    byId("restore").hidden = hidden.size === 0;
    byId("restore").textContent = `Show hidden rows (${hidden.size})`;
  };
  boards.forEach((board) => sortable(board.querySelector("table")));
  byId("families").addEventListener("change", show);
  byId("find").addEventListener("input", show);
  byId("restore").addEventListener("click", () => {
    hidden.clear();
    show();
    byId("find").focus();
  });
  byId("leaderboard").addEventListener("click", (event) => {
    const button = event.target.closest(".hide");
    if (!button) return;
    const row = button.closest("tr");
    hidden.add(row.dataset.method);
    const next = row.nextElementSibling || row.previousElementSibling;
    show();
    if (next) next.querySelector(".hide").focus();
  });
  onArena(() => {
    boards.forEach((board) => (board.hidden = board.dataset.arena !== arena().id));
  });
}
