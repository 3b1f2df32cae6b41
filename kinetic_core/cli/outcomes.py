"""A job's end at the terminal: its value, or what it raised."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kinetic_core.cli.exit_codes import Exit, exit_code
from kinetic_core.cli.output import Output
from kinetic_core.cli.verb import fail
from kinetic_core.errors import KineticError

_LONGEST = 20_000


@dataclass(frozen=True)
class Ending:
    """A value, or the error there is instead."""

    value: Any = None
    error: Exception | None = None

    def told(self, output: Output) -> Exit:
        """Say the error; its exit code. Whatever the user's function raised is the job's failure."""
        error = self.error or ValueError("there is no error")
        return fail(output, error, exit_code(error) if isinstance(error, KineticError) else Exit.JOB_FAILED)


def make_project_importable() -> None:
    """Let a value's class be imported from the current directory, as `python -m` would; from there last."""
    if "" not in sys.path:
        sys.path.append("")


def collected(collect: Callable[[], Any]) -> Ending:
    """What collecting a job gives."""
    try:
        return Ending(collect())
    except Exception as exc:  # noqa: BLE001  the user's function may have raised anything
        return Ending(error=exc)


def value_fields(value: Any) -> dict[str, Any]:
    """A value, for JSON."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        told = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        told = None
    return {"result": told, "repr": _shown(value), "type": name}


def show_value(output: Output, value: Any) -> None:
    """The value for people; nothing for None."""
    if value is not None:
        output.line(value if isinstance(value, str) else _shown(value))


def _shown(value: Any) -> str:
    """The value's `repr`, shortened. A class of the user's may fail there, and huge whole numbers do."""
    try:
        return repr(value)[:_LONGEST]
    except Exception as exc:  # noqa: BLE001  it may raise anything
        return f"<{type(value).__qualname__}, whose repr raises {type(exc).__name__}>"
