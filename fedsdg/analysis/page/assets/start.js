// The theme and the address; then every section, one after the other, so that the first is there soon.
const SECTIONS = { leaderboard, standing, rivals, curves, gates, ledger, tuning, speed };
const here = (name) => byId(name) && SECTIONS[name];

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(dark));
}

function go() {
  if (place && byId(place)) byId(place).scrollIntoView();
}

// All that follows the address: controls that stand in the page, then the sections.
function show() {
  document.querySelectorAll("[data-state]").forEach(restore);
  Object.keys(SECTIONS).filter(here).forEach((name) => SECTIONS[name]());
  dialog();
}

function changed(event) {
  const control = event.target.closest("[data-state]");
  if (!control) return;
  remember(control.dataset.state, chosenIn(control), control.id === "arena");
  if (control.id === "arena") show();
  else SECTIONS[control.closest("section").id]();
}

function start() {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const turn = (dark) => {
    setTheme(dark);
    ["curves", "speed"].filter(here).forEach((name) => SECTIONS[name]());
    PLOTS.forEach((plot) => plot.again());
  };
  setTheme(preferred.matches);
  preferred.addEventListener("change", (event) => turn(event.matches));
  byId("theme").addEventListener("click", () => turn(!isDark()));
  byId("arena").dataset.usual = data.arenas[0].id;
  document.addEventListener("input", changed);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    place = link.getAttribute("href").slice(1);
    writeAddress(true);
    go();
    byId(place).focus({ preventScroll: true });
  });
  window.addEventListener("popstate", () => {
    readAddress();
    show();
    go();
  });
  sortOnClick();
  hideOnClick();
  openOnClick();
  readAddress();
  document.querySelectorAll("[data-state]").forEach(restore);
  leaderboard();
  document.documentElement.dataset.ready = "tables";
  const rest = Object.keys(SECTIONS).filter((name) => name !== "leaderboard" && here(name));
  const next = () => {
    const name = rest.shift();
    if (name) {
      SECTIONS[name]();
      setTimeout(next, 0);
      return;
    }
    go();
    dialog();
    document.documentElement.dataset.ready = "all";
  };
  setTimeout(next, 0);
}

start();
