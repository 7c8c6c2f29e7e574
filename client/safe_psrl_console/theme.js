// Light or dark: the system setting, until the user chooses; the choice is stored in this browser.
(() => {
  const KEY = "safe-psrl-theme";
  const MODES = ["auto", "light", "dark"];
  const NAMES = { auto: "as the system", light: "light", dark: "dark" };
  const read = () => (MODES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "auto");

  const apply = () => {
    if (!window.Quasar) return false;
    const mode = read();
    Quasar.Dark.set(mode === "auto" ? "auto" : mode === "dark");
    for (const button of document.querySelectorAll("[data-theme-button]")) {
      button.dataset.mode = mode;
      button.setAttribute("aria-label", `Appearance: ${NAMES[mode]}. Change it`);
      button.title = `Appearance: ${NAMES[mode]}`;
    }
    return Boolean(document.querySelector("[data-theme-button]"));
  };

  window.safePsrlNextTheme = () => {
    localStorage.setItem(KEY, MODES[(MODES.indexOf(read()) + 1) % MODES.length]);
    apply();
  };

  const untilShown = () => apply() || requestAnimationFrame(untilShown);
  addEventListener("DOMContentLoaded", untilShown);
})();
