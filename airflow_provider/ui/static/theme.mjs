/** Dark or light as Airflow is: it keeps its user's choice in local storage; else as the system is. */

const KEY = "theme";

function chosen() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a sandbox without storage
  }
}

function apply(theme) {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

/** Follow the choice from now on. */
export function followTheme() {
  apply(chosen());
  addEventListener("storage", (event) => event.key === KEY && apply(event.newValue));
}
