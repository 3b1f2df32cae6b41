"""What the command prints: one JSON object, plain text in a pipe, or a table on a terminal.

Texts of users are data: they are never read as markup, and what a terminal would obey is shown, not sent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from kinetic_core._runner.log import printable
from kinetic_core.cli.schemas import SCHEMAS, numbered
from kinetic_core.terminal import in_letters_of


class Output:
    """Where a verb says what it has to say. With `as_json`, exactly one object is printed."""

    def __init__(self, as_json: bool = False, stream: TextIO | None = None) -> None:
        self.as_json = as_json
        self.stream = stream or sys.stdout

    @property
    def is_terminal(self) -> bool:
        """Whether a person is looking."""
        return self.stream.isatty()

    def json(self, schema: str, fields: Mapping[str, Any]) -> None:
        """The verb's answer, as `docs/reference/cli-json.md` describes the schema of that name."""
        unknown = set(fields) ^ set(SCHEMAS[schema])
        if unknown:
            raise TypeError(f"the answer {schema} and its description differ in {sorted(unknown)}")
        self._write(json.dumps({"schema": numbered(schema), **fields}, default=str) + "\n")

    def line(self, text: str = "") -> None:
        """A line of text, if no JSON is asked for."""
        if not self.as_json:
            self._write(printable(text) + "\n")

    def raw(self, text: str) -> None:
        """A job's own output, as it is."""
        self._write(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> None:
        """Fitted to the terminal, where `spare` columns go as they must; in a pipe complete, a line a row."""
        if self.as_json:
            return
        cells = [[self._cell(cell) for cell in row] for row in rows]
        if self.is_terminal:
            self._draw(columns, cells, spare)
            return
        widths = _widths(columns, cells)
        for row in [list(columns), *cells]:
            padded = (cell.ljust(widths[name]) for name, cell in zip(columns, row, strict=True))
            self._write("  ".join(padded).rstrip() + "\n")

    def _cell(self, text: str) -> str:
        """One line, whose width is what will be written of it."""
        return in_letters_of(self.stream, printable(text).replace("\n", " ").replace("\t", " "))

    def flush(self) -> None:
        self.stream.flush()

    def _draw(self, columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(file=self.stream, highlight=False)
        shown = _fitting(_widths(columns, rows), spare, console.width)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in shown:
            table.add_column(column, overflow="fold")
        for row in rows:
            cells = (cell for name, cell in zip(columns, row, strict=True) if name in shown)
            table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
        console.print(table)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


STYLES = {
    "RUNNING": "cyan",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "red",
    "PENDING": "yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    return {name: max(map(len, (name, *cells))) for name, *cells in zip(columns, *rows, strict=True)}


def _fitting(widths: Mapping[str, int], spare: Sequence[str], limit: int) -> list[str]:
    """The columns that stay: as long as they do not fit, the next spare one goes."""
    shown = dict(widths)
    for name in spare:
        if sum(shown.values()) + 2 * len(shown) > limit:
            del shown[name]
    return list(shown)
