"""Which instance of a mapped task this is, in words: for its log, and for the error it ends with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Any

Redact = Callable[[str, str], Any]
"""Airflow's `redact`: a value and the name it goes by, to the value as it may be shown."""
_LONGEST_VALUE = 40
_LONGEST = 120


def instance_name(
    ti: Any, function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], redact: Redact
) -> str:
    """`train[2] (rate=0.3)` for an instance of a mapped task, "" for a task that is not mapped.

    In brackets is what the task's `map_index_template` says. Without one, its arguments: those that are
    numbers, truth values or short texts. `redact` hides what is secret by its name or its value.
    """
    if ti.map_index is None or ti.map_index < 0:
        return ""
    label = getattr(ti, "rendered_map_index", None) or _shortened(_shown(function, args, kwargs, redact))
    return f"{ti.task_id}[{ti.map_index}]" + (f" ({label})" if label else "")


def named(name: str, text: object) -> str:
    """The text as said by that instance; by nobody if the name is ""."""
    return f"{name}: {text}" if name else str(text)


def _shown(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], redact: Redact
) -> Iterator[str]:
    given = chain(zip(inspect.signature(function).parameters, args, strict=False), kwargs.items())
    for parameter, value in given:
        if type(value) in (bool, int, float) or (type(value) is str and len(value) <= _LONGEST_VALUE):
            yield f"{parameter}={redact(repr(value), parameter)}"


def _shortened(parts: Iterator[str]) -> str:
    text = ", ".join(parts)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
