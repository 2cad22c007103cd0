// The theme and the address; then every section, one after the other, so that the first is there soon.
const SECTIONS = { leaderboard, standing, rivals, curves, gates, ledger, tuning, speed };
const there = Object.keys(SECTIONS).filter(byId);

function setTheme(dark) {
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", dark);
}

const controls = () => document.querySelectorAll(CONTROLS);
const go = () => place && byId(place)?.scrollIntoView();

// All that follows the address: controls that stand in the page, then the sections.
function show() {
  controls().forEach(restore);
  there.forEach((name) => SECTIONS[name]());
  dialog();
}

function changed({ target }) {
  const control = target.closest(CONTROLS);
  const isArena = control.id === "arena";
  remember(control.id, chosenIn(control), isArena);
  if (isArena) show();
  else SECTIONS[control.closest("section").id]();
}

function followLink(event) {
  const link = event.target.closest('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  place = link.getAttribute("href").slice(1);
  writeAddress(true);
  go();
  byId(place).focus({ preventScroll: true });
}

async function start() {
  data = await unpacked(byId("data").textContent);
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  setTheme(preferred.matches);
  preferred.addEventListener("change", ({ matches }) => setTheme(matches));
  byId("theme").addEventListener("click", ({ target }) => setTheme(target.ariaPressed === "false"));
  byId("arena").dataset.usual = data.arenas[0].id;
  document.addEventListener("input", changed);
  document.addEventListener("click", followLink);
  window.addEventListener("popstate", () => {
    readAddress();
    show();
    go();
  });
  onClickInTables();
  openOnClick();
  readAddress();
  controls().forEach(restore);
  leaderboard();
  document.documentElement.dataset.ready = "tables";
  for (const name of there.filter((one) => one !== "leaderboard")) {
    await new Promise((resolve) => setTimeout(resolve, 0));
    SECTIONS[name]();
  }
  go();
  dialog();
  document.documentElement.dataset.ready = "all";
}

start();
