"""From FILE[:FUNCTION] to a function that runs as a job, and from words to its arguments."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kinetic_core.cli.verb import Session
from kinetic_core.errors import InvalidFunction, InvalidRequest, KineticError
from kinetic_core.option_checks import duration

if TYPE_CHECKING:
    from kinetic_core.decorator import RemoteCallable


def load(
    target: str, session: Session, accelerator: str | None, warm: str | None = None
) -> RemoteCallable[..., Any]:
    """The function, with the options that flags replace. Raises InvalidRequest or InvalidFunction."""
    from kinetic_core.decorator import RemoteCallable
    from kinetic_core.options import RunOptions

    text, _, name = target.partition(":")
    name = _typed(name)
    module = import_file(Path(text))
    found = getattr(module, name, None) if name else _only_one(module, text)
    if found is None:
        raise InvalidRequest(
            f"{text} has no function {name!r}; it has: {', '.join(_functions(module)) or 'none'}"
        )
    if not isinstance(found, RemoteCallable):
        if accelerator is None:
            raise InvalidRequest(
                f"{name!r} is not decorated with @kinetic_core.run; say what it runs on: --accelerator cpu"
            )
        from kinetic_core.decorator import run

        found = run(accelerator=accelerator)(found)
    options = found.options
    if accelerator is not None:
        options = replace(options, accelerator=RunOptions.checked(accelerator).accelerator, fallbacks=())
    if warm is not None:
        options = replace(options, warm=duration("--warm", warm))
    places: dict[str, Any] = {name: value for name, value in session.flags.items() if name != "profile"}
    options = replace(options, **places)
    options.check_rules()
    return found.with_options(options).with_connections(session.connections)


def arguments(words: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a call: `NAME=VALUE` by name, others in order; a value is a Python literal, or a text."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in map(_typed, words):
        name, equals, text = word.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = _value(text)
        elif kwargs:
            raise InvalidRequest(f"{word!r} comes after a NAME=VALUE; give it a name too")
        else:
            args.append(_value(word))
    return args, kwargs


def _typed(word: str) -> str:
    """A word of the command's line as it was typed, in UTF-8, where the locale has not its letters."""
    if not any("\udc80" <= letter <= "\udcff" for letter in word):
        return word
    try:
        return os.fsencode(word).decode()
    except UnicodeDecodeError:
        return word


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # TypeError: a list as a key
        return text


def import_file(path: Path) -> ModuleType:
    """The file as a module of its own name, as another file in its directory would import it."""
    path = path.absolute()
    if not path.is_file():
        raise InvalidRequest(f"{path} is not a file: write FILE or FILE:FUNCTION")
    if path.stem in sys.modules or path.stem in sys.stdlib_module_names:
        raise InvalidRequest(f"{path.name} has the name of a module that is in use; rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except KineticError:
        raise
    except (Exception, SystemExit) as exc:
        error = InvalidFunction(f"{path} cannot be imported: {type(exc).__name__}: {exc}")
        raise error from exc
    return module


def _functions(module: ModuleType) -> list[str]:
    from kinetic_core.decorator import RemoteCallable

    return [name for name, value in vars(module).items() if isinstance(value, RemoteCallable)]


def _only_one(module: ModuleType, file: str) -> Any:
    names = _functions(module)
    if len(names) != 1:
        told = f"decorates {', '.join(names)}" if names else "decorates no function with @kinetic_core.run"
        raise InvalidRequest(f"{file} {told}; say which to run: {file}:FUNCTION")
    return getattr(module, names[0])
