// Tables: sorted by a column, filtered by the controls of their section, rows hidden.
const valueIn = (row, at) => row.cells[at].dataset.sort ?? row.cells[at].textContent;

// What is missing stands last in either direction; equal rows keep their order.
function sortBy(head, direction) {
  const heads = [...head.parentElement.children];
  const [at, sign] = [heads.indexOf(head), direction === "ascending" ? 1 : -1];
  heads.forEach((one) => one.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", direction);
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows];
  rows.sort((a, b) => {
    const [x, y] = [valueIn(a, at), valueIn(b, at)];
    if (!head.classList.contains("n")) return sign * x.localeCompare(y, "en");
    return Number.isNaN(+x) || Number.isNaN(+y) ? Number.isNaN(+x) - Number.isNaN(+y) : sign * (x - y);
  });
  body.append(...rows);
}

// The direction of a click on a heading: numbers fall at first, words rise; then the other.
function nextDirection(head) {
  const opposite = { ascending: "descending", descending: "ascending" };
  return opposite[head.getAttribute("aria-sort")] ?? (head.classList.contains("n") ? "descending" : "ascending");
}

// Whether a control lets a row be seen: words that are in it, a choice or boxes with its value.
function admits(control, row) {
  const value = row.dataset[control.dataset.filter] ?? row.textContent;
  if (control.type === "search") return value.toLowerCase().includes(control.value.trim().toLowerCase());
  return control.tagName === "SELECT" ? [value, ""].includes(control.value) : checked(control).includes(value);
}

function filter(section, rows) {
  const controls = [...section.querySelectorAll("[data-filter]")];
  for (const row of rows) row.hidden = !controls.every((control) => admits(control, row));
}

// The board of the arena, by the column, the families, the words and the hidden rows that were chosen.
function leaderboard() {
  const hidden = state.getAll("hide");
  for (const board of document.querySelectorAll(".board")) {
    board.hidden = board.dataset.arena !== arena().id;
    if (board.hidden) continue;
    const heads = [...board.querySelector("thead tr").cells];
    const [column, direction] = (state.get("sort") ?? "").split(" ");
    const head = heads.find((one) => one.dataset.column === column);
    sortBy(head ?? heads[1], (head && direction) || "descending");
    const rows = board.querySelectorAll("tr[data-method]");
    filter(byId("leaderboard"), rows);
    for (const row of rows) row.hidden ||= hidden.includes(row.dataset.method);
  }
  byId("restore").hidden = hidden.length === 0;
  byId("restore").textContent = `Show hidden rows (${hidden.length})`;
}

function ledger() {
  const rows = [...byId("claims").tBodies[0].rows];
  filter(byId("ledger"), rows);
  byId("claims-shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
}

function onClickInTables() {
  document.addEventListener("click", ({ target }) => {
    const head = target.closest("thead button")?.parentElement;
    if (!head) return;
    const direction = nextDirection(head);
    if (head.dataset.column && head.closest(".board")) {
      remember("sort", [`${head.dataset.column} ${direction}`]);
      leaderboard();
    } else {
      sortBy(head, direction);
    }
  });
  for (const row of document.querySelectorAll("tr[data-method]")) {
    const named = { "aria-label": `Hide ${row.querySelector(".number").textContent}`, title: "Hide this row" };
    row.lastElementChild.append(node("button", { type: "button", class: "hide", ...named }));
  }
  byId("restore").addEventListener("click", () => {
    remember("hide", []);
    leaderboard();
    byId("find").focus();
  });
  byId("leaderboard").addEventListener("click", ({ target }) => {
    if (!target.matches(".hide")) return;
    const row = target.closest("tr");
    const next = row.nextElementSibling || row.previousElementSibling;
    remember("hide", [...state.getAll("hide"), row.dataset.method]);
    leaderboard();
    if (next) next.querySelector(".hide").focus();
  });
}
