"""The `kinetic` command. A new verb is a function under `@verb`, its module in `_MODULES` below."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import typer

_MODULES = {
    "home": ("home",),
    "run": ("run",),
    "shell": ("shell",),
    "jobs": ("jobs", "watch"),
    "batch": ("batches",),
    "warm": ("warm",),
    "package": ("package",),
    "build-image": ("images",),
    "accelerators": ("accelerators",),
    "doctor": ("doctor",),
    "profile": ("profiles",),
    "config": ("config",),
    "reap": ("reap",),
    "up": ("clusters",),
    "down": ("clusters",),
    "status": ("clusters",),
    "init": ("clusters",),
    "pool": ("pools",),
    "namespace": ("namespaces",),
    "cost": ("cost",),
}
"""Where the verbs of each first word are."""


_INTERRUPTED = 130
"""`Exit.INTERRUPTED`, also while that is being imported."""
_USER_ERROR = 2
"""`Exit.USER_ERROR`, likewise."""


def main() -> None:
    """Entry point of `kinetic`. Ends the process with one of `kinetic_core.cli.exit_codes.Exit`.

    Ctrl-C is told here alone, whoever noticed it: an import, typer, or a verb.
    """
    try:
        _call()
    except KeyboardInterrupt:
        code: int | str | None = _INTERRUPTED
    except SystemExit as ended:
        code = ended.code
    if code == _INTERRUPTED:
        sys.stderr.write("interrupted\n")
    _leave(code)


def _leave(code: int | str | None) -> NoReturn:
    """End the process, with it the threads in which a service is still asked, such as one that is silent.

    Python would end each of them where it next runs Python code. Below a library in Rust or C++, such as
    pydantic's core, that aborts the process: "FATAL: exception not rethrown".
    """
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others and all(thread.daemon for thread in others) and not isinstance(code, str):
        atexit._run_exitfuncs()  # as Python does at its end
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # who reads them has been told before, or is gone
                stream.flush()
        os._exit(code or 0)
    sys.exit(code)


def _call() -> NoReturn:
    try:
        import_module("typer")
    except ModuleNotFoundError:
        sys.stderr.write("kinetic: the command needs two more packages: pip install typer rich\n")
        sys.exit(_USER_ERROR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without the letters of a log
    words = sys.argv[1:]
    build(words)(words or ["home"], prog_name="kinetic")
    sys.exit()


def build(words: Sequence[str] = ()) -> typer.Typer:
    """The command with the verbs that a call with these words can need: all, if the first is misspelt."""
    from kinetic_core.cli.root import app

    before = ["", *words]
    own = (word for last, word in zip(before, words, strict=False) if last != "--profile")
    first = next((word for word in own if not word.startswith("-")), "")
    needed = [first] if first in _MODULES else list(_MODULES)
    for module in (module for word in needed for module in _MODULES[word]):
        import_module(f"kinetic_core.cli.{module}")
    return app
