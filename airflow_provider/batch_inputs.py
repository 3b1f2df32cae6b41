"""Inputs of a batch: what the mapped argument of a task gives, as the list of its elements."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_provider.xcom import LazyValues, Verify, with_references
from kinetic_core.connections import Connections
from kinetic_core.errors import InvalidRequest, UnverifiedResult
from kinetic_core.jobs.collect import load_reference
from kinetic_core.jobs.references import is_reference
from kinetic_core.project.ignore import is_airflow_file
from kinetic_core.store import open_store

_LINES = ".jsonl"


def mapped_parameter(function: Callable[..., Any], over: str | None) -> str:
    """Return the name of the parameter that gets one element in each call.

    Raises InvalidRequest if the function has no parameter of that name that can be given by name.
    """
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [each.name for each in inspect.signature(function).parameters.values() if each.kind in by_name]
    if not names:
        raise InvalidRequest("a batch needs a function with a parameter that each input is given as")
    if over is not None and over not in names:
        raise InvalidRequest(f"over={over!r} is no parameter of the function, which has {', '.join(names)}")
    return over or names[0]


def elements(
    value: object, name: str, context: Mapping[str, Any], connections: Connections, verify: Verify
) -> list[Any]:
    """Return the elements of the mapped argument `name`, as the jobs get them.

    A list, tuple or other sequence, also that of an earlier batch or of a mapped task; an iterator; a
    function, which is called with those parts of Airflow's context that its parameters name; a reference to a
    value that is plain data; or the address of a file of JSON lines, `gs://bucket/path.jsonl` or
    `file:///path.jsonl`. Raises InvalidRequest for anything else.
    """
    if isinstance(value, LazyValues):
        return list(value.references())
    if is_reference(value):
        value = _loaded(value, name, verify)
    elif callable(value):
        value = _called(value, name, context)
    elif isinstance(value, str):
        return json_lines(value, name, connections)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(
            f"{name} is {_article(value)}, and the task runs over its elements: pass a list, a generator, "
            "the output of another task, or the address of a file of JSON lines (gs://bucket/path.jsonl)"
        )
    found: list[Any] = with_references(list(value), name, verify)
    return found


def json_lines(address: str, name: str, connections: Connections) -> list[Any]:
    """Read a file with a JSON value in each line; empty lines are left out.

    Raises InvalidRequest for another address, or naming the first line that is no JSON; StoreError.
    """
    parts = urlsplit(address)
    folder, _, file = address.rpartition("/")
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if is_airflow_file(path.name) or is_airflow_file(path.resolve().name):
            raise InvalidRequest(f"{name}={address!r} is Airflow's own, and its content never ships")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidRequest(f"{name}={address!r} cannot be read by this worker: {error}") from error
    elif parts.scheme == "gs" and file and parts.path.strip("/"):
        content = open_store(folder, connections).read(file)
    else:
        raise InvalidRequest(f"{name}={address[:200]!r} is a text: pass a list, or gs://bucket/path{_LINES}")
    found = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise InvalidRequest(f"{name}: line {number} of {address} is no JSON: {error}") from error
    return found


def _called(function: Callable[..., Any], name: str, context: Mapping[str, Any]) -> object:
    """Call a function of the DAG with the parts of the context that its parameters name."""
    given: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= {key: context[key] for key in context if key not in given}
        elif parameter.name in context:
            given[parameter.name] = context[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise InvalidRequest(
                f"{name} is a function whose parameter {parameter.name!r} is nothing of Airflow's context"
            )
    found: object = function(**given)
    return found


def _loaded(value: Any, name: str, verify: Verify) -> object:
    """Load the value that a kinetic task has returned, if that needs no unpickling."""
    reference = verify(value, name)
    try:
        return load_reference(reference, trust_store=False)
    except UnverifiedResult as error:
        raise InvalidRequest(
            f"{name} is a {reference.type_name} of {reference.job_id}, whose elements only a job can see: "
            f"return a list of plain data to run over it ({error})"
        ) from error


def _article(value: object) -> str:
    kind = type(value).__name__
    return f"an {kind}" if kind[:1].lower() in "aeiou" else f"a {kind}"
