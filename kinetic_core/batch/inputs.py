"""How one input of a batch becomes the arguments of one call."""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword
from typing import Any

from kinetic_core.errors import InvalidRequest

MODES = ("auto", "single", "args", "kwargs")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def check_mode(mode: str) -> None:
    """Raise InvalidRequest unless `mode` is one of MODES."""
    if mode not in MODES:
        raise InvalidRequest(f"input_mode={mode!r} is not one of {', '.join(MODES)}")


def arguments_of(item: Any, mode: str) -> Arguments:
    """Positional and keyword arguments of one input.

    `auto`: a dict whose keys could be parameter names is keywords, a list or tuple is positional
    arguments, anything else (other dicts too) is the one argument. `single`, `args` and `kwargs` say it
    outright; a wrong type for them raises TypeError.
    """
    if mode == "args":
        if not isinstance(item, list | tuple):
            raise TypeError(f"input_mode='args' needs a list or tuple per input, not {type(item).__name__}")
        return tuple(item), {}
    if mode == "kwargs":
        if not isinstance(item, Mapping):
            raise TypeError(f"input_mode='kwargs' needs a dict per input, not {type(item).__name__}")
        return (), dict(item)
    if mode == "auto" and isinstance(item, dict) and all(map(_could_be_parameter, item)):
        return (), dict(item)
    if mode == "auto" and isinstance(item, list | tuple):
        return tuple(item), {}
    return (item,), {}


def _could_be_parameter(key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier() and not iskeyword(key)
