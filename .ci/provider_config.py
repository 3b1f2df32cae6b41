"""Write docs/reference/airflow-configuration.md from the table of `airflow_provider.config`."""

from __future__ import annotations

from pathlib import Path

from airflow_provider.config import DESCRIPTION, SECTION, rows

PAGE = Path(__file__).parents[1] / "docs/reference/airflow-configuration.md"
_HEAD = f"""\
# Airflow's configuration
<!-- Made by `.ci/provider_config.py`; a test compares. -->

{DESCRIPTION}

Set an option in the section `[{SECTION}]` of `airflow.cfg`, or as the environment variable
`AIRFLOW__{SECTION.upper()}__` and its name in capitals, where tasks run, in the triggerer and in the API
server. A process reads the section once, so restart it after a change. A value below the least one is an
error that names the option.

Of Airflow's own options, `AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE` counts, as a variable only: see
[the guide](../guides/airflow.md#options).

| option | type | default | least | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    lines = (
        f"| `{row.name}` | {row.type} | {row.default} | {row.option.minimum:g} | {row.option.doc} |\n"
        for row in rows()
    )
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
