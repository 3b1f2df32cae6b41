"""Reference pages, made of what the code says: `python -m kinetic_core.cli.reference FOLDER`."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main

from kinetic_core.accelerators.shapes import Family, families
from kinetic_core.cli.exit_codes import Exit
from kinetic_core.cli.main import build
from kinetic_core.cli.schemas import SCHEMAS, SHAPES, numbered
from kinetic_core.job import PodOptions
from kinetic_core.options import BATCH_TASK_OPTIONS, MAP_OPTIONS, OPTIONS, Table

_WIDTH = 88
_MADE = "<!-- Made by `python -m kinetic_core.cli.reference docs/reference`; a test compares. -->\n"
_ABOUT = """\
The extra `cli` installs it, from a checkout `pip install '.[cli]'`. The [guide](../guides/command-line.md)
shows it at work; what `--json` prints is in [its own page](cli-json.md).
"""
_ABOUT_JSON = """\
With `--json` a verb prints exactly one JSON object, in ASCII, and nothing else on stdout. Its field
`schema` is the verb's name, a slash and a version: `jobs.list/2`. Under the same version no field is
renamed, removed or changes its type; new ones may come. Every time is a number, of Unix seconds in UTC.
Where the verb fails the object is an `error/1`, and the exit code the same as without `--json`; wrong
options are told on stderr alone.
"""
_ABOUT_ACCELERATORS = """\
What `accelerator=` takes, besides `cpu` and `cpu:8` (cores). `:spot` behind a name is `spot=True`. A name
without a size is the family's default; TPUs may also be named by their topology, `tpu-v5e-2x4`. Chips are of
the whole slice; one of several hosts runs the function on [each of them](../guides/multi-host.md).
`kinetic accelerators` prints the same.
"""
_ABOUT_OPTIONS = """\
## Of `run`

What `@kinetic_core.run(...)` takes. Each option is checked where it is written. Those up to `debug` may be
given by position. Those marked *pod* describe the job's pod. Backend `local` has none: there `cpu`,
`labels`, `secrets`, `lease` and `hang_after` have their effect or are refused, and of the others each call
says that they have none.

`@task.kinetic(...)` and `KineticOperator` take them too, but for `debug`; `retries` and `queue` are called
`job_retries` and `job_queue` there. In a task each may be a template, or
[come from another task](../guides/airflow.md#options).
"""


_ABOUT_BATCH_TASKS = """\
`@task.kinetic_batch(...)` and `KineticBatchOperator` take these besides the options of a task. Each may be a
template.
"""


def pages() -> dict[str, str]:
    """File name to content."""
    return {
        "cli.md": _commands_page(),
        "cli-json.md": _json_page(),
        "accelerators.md": _accelerators_page(),
        "options.md": _options_page(),
    }


def _commands_page() -> str:
    parts = [
        "# The `kinetic` command",
        _MADE,
        _ABOUT,
        "## Exit codes\n",
        "| code | meaning |\n|---|---|",
        *(f"| {code.value} | {code.meaning} |" for code in Exit),
        "\n## Environment\n",
        "Everything that [settings](configuration.md) are read from; `NO_COLOR` turns colours off.\n",
    ]
    for name, text in _helps():
        parts.append(f"## `{name}`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def _helps() -> Iterator[tuple[str, str]]:
    """Every verb's full name and help, groups left out."""
    yield from _below(typer.main.get_command(build()), "kinetic")


def _below(command: Any, name: str) -> Iterator[tuple[str, str]]:
    commands: Mapping[str, Any] | None = getattr(command, "commands", None)
    if commands is None:
        context = command.context_class(
            command, info_name=name, terminal_width=_WIDTH, help_option_names=["--help", "-h"]
        )
        yield name, command.get_help(context).rstrip()
        return
    for word, below in sorted(commands.items()):
        if not below.hidden:
            yield from _below(below, f"{name} {word}")


def _json_page() -> str:
    parts = [
        "# What `--json` prints",
        _MADE,
        _ABOUT_JSON,
        "## Objects in lists\n",
    ]
    for name, fields in SHAPES.items():
        parts.append(f"### {name}\n\n{_table(fields)}\n")
    parts.append("## Schemas\n")
    for name, fields in SCHEMAS.items():
        parts.append(f"### `{numbered(name)}`\n\n{_table(fields)}\n")
    return "\n".join(parts)


def _table(fields: Mapping[str, str]) -> str:
    rows = (f"| `{name}` | {meaning} |" for name, meaning in fields.items())
    return "\n".join(["| field | meaning |", "|---|---|", *rows])


def _accelerators_page() -> str:
    return "\n".join(
        [
            "# Accelerators",
            _MADE,
            _ABOUT_ACCELERATORS,
            *(_family(one) for one in families() if not one.retired),
        ]
    )


def _options_page() -> str:
    pod = {each.name for each in dataclasses.fields(PodOptions)}
    parts = ["# Options", _MADE, _ABOUT_OPTIONS, *_options(OPTIONS, pod)]
    parts += ["\n## Of `run_async_map`\n", *_options(MAP_OPTIONS)]
    parts += ["\n## Of `@task.kinetic_batch`\n", _ABOUT_BATCH_TASKS, *_options(BATCH_TASK_OPTIONS)]
    return "\n".join(parts) + "\n"


def _options(table: Table, pod: Collection[str] = ()) -> Iterator[str]:
    yield "| option | type | default | meaning |\n|---|---|---|---|"
    for name, row in table.rows.items():
        kind = table.types[name].replace("|", "\\|")
        default = "" if row.default is None else f"`{row.default!r}`"
        mark = " *(pod)*" if name in pod else ""
        words = re.sub(r"docs/(guides/[-a-z]+\.md)", r"[the guide](../\1)", row.help(name))
        yield f"| `{name}`{mark} | `{kind}` | {default} | {words} |"


def _family(family: Family) -> str:
    also = f"Also: {', '.join(f'`{name}`' for name in family.aliases)}. " if family.aliases else ""
    sources = ", ".join(f"[{number}]({url})" for number, url in enumerate(family.sources, start=1))
    about = f"Default: `{family.default}`. {also}{family.note}".rstrip()
    lines = [f"## {family.title}\n", f"{about} Sources: {sources}.\n"]
    lines += ["| name | chips | hosts | topology | machine | note |", "|---|---|---|---|---|---|"]
    for row in family.rows:
        one = row.accelerator
        note = row.note.removesuffix(family.note).rstrip()
        cells = (f"`{one}`", one.chips, one.hosts, one.topology or "", one.machine_type, note)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the pages of the reference that code makes.")
    parser.add_argument("folder", type=Path, help="where they go: docs/reference")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in pages().items():
        (folder / file).write_text(content, encoding="utf-8")
