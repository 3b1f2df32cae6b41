"""The `kinetic` command. A new verb is a function under `@verb`, its module in `_MODULES`."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

_MODULES = (
    "running",
    "jobs",
    "watching",
    "batches",
    "packaging",
    "accelerators",
    "doctor",
    "profiles",
    "config",
    "reaping",
)


def main() -> None:
    """Entry point of `kinetic`. Ends the process with one of `kinetic_core.cli.exits.Exit`."""
    try:
        import_module("typer")
    except ModuleNotFoundError:
        sys.exit("kinetic: the command needs more packages: pip install 'airflow-provider-kinetic[cli]'")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without the letters of a log
    try:
        build()(prog_name="kinetic")
    except KeyboardInterrupt:
        sys.exit(130)


def build() -> typer.Typer:
    """The command with all its verbs."""
    from kinetic_core.cli.root import app

    for module in _MODULES:
        import_module(f"kinetic_core.cli.{module}")
    return app
