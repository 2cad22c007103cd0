// The theme and the arena; then every section, one after the other, so that the first is there soon.
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(dark));
}

function start() {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  setTheme(preferred.matches);
  const changed = (dark) => {
    setTheme(dark);
    themed.forEach((again) => again());
    drawAllAgain();
  };
  preferred.addEventListener("change", (event) => changed(event.matches));
  byId("theme").addEventListener("click", () => changed(!isDark()));
  leaderboard();
  provenance();
  ledger();
  const sections = [rivals, convergence, gates, robustness, tuning, roofline];
  const begun = listeners.length;
  listeners.slice(0, begun).forEach((fillSection) => fillSection());
  byId("arena").addEventListener("change", () => listeners.forEach((fillSection) => fillSection()));
  document.documentElement.dataset.ready = "tables";
  const next = () => {
    const section = sections.shift();
    if (!section) {
      document.documentElement.dataset.ready = "all";
      return;
    }
    const known = listeners.length;
    section();
    listeners.slice(known).forEach((fillSection) => fillSection());
    setTimeout(next, 0);
  };
  setTimeout(next, 0);
}

start();
