/** Font and colours of the Airflow around this page: of its theme, which may be an administrator's own. */

const KEY = "theme";
const NAMES = {
  "--back": "--chakra-colors-bg",
  "--raised": "--chakra-colors-bg-muted",
  "--line": "--chakra-colors-border",
  "--text": "--chakra-colors-fg",
  "--dim": "--chakra-colors-fg-muted",
  "--font": "--chakra-fonts-body",
};

function chosen() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a sandbox without storage
  }
}

/** Airflow's own document, null where this page is not inside of it. */
function around() {
  try {
    return parent === window ? null : parent.document.documentElement;
  } catch {
    return null; // a frame of another origin
  }
}

function apply() {
  const [airflow, { style, dataset }] = [around(), document.documentElement];
  const theme = ["dark", "light"].find((each) => airflow?.classList.contains(each)) ?? chosen();
  if (theme === "dark" || theme === "light") dataset.theme = theme;
  else delete dataset.theme;
  const told = airflow ? getComputedStyle(airflow) : null;
  for (const [ours, theirs] of Object.entries(NAMES)) style.setProperty(ours, told?.getPropertyValue(theirs) ?? "");
}

/** Follow the choice from now on. */
export function followTheme() {
  apply();
  addEventListener("storage", (event) => event.key === KEY && apply());
  const airflow = around();
  if (airflow) new MutationObserver(apply).observe(airflow, { attributes: true, attributeFilter: ["class", "style"] });
}
