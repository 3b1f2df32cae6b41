"""What a decorated object is: whether it can become a job, what it is called, where it was written."""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetic_core.bound_method import BoundMethod
from kinetic_core.errors import InvalidFunction

_MAX_NAME = 40


def check_callable(function: Any) -> None:
    """Raise InvalidFunction unless `function` can become a job. Touches no file.

    Functions, lambdas, methods, static and class methods, partials, callable instances and coroutine
    functions can; classes, generators and cache wrappers cannot.
    """
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    if not callable(function):
        raise InvalidFunction(f"run decorates a function, not {function!r} ({type(function).__name__})")
    if isinstance(function, type):
        raise InvalidFunction(
            f"run cannot decorate the class {function.__qualname__}; decorate a function that uses it"
        )
    if hasattr(function, "cache_clear") and hasattr(function, "cache_info"):
        raise InvalidFunction(
            f"{callable_name(function)} is a cache wrapper (functools.cache or lru_cache), which would be "
            "empty in the job. Put @run on the function inside, and the cache above @run"
        )
    code = getattr(_inside(function), "__code__", None)
    if code and code.co_flags & _GENERATORS:
        raise InvalidFunction(
            f"{callable_name(function)} is a generator, but a job returns one value. Return a list instead"
        )


_GENERATORS = 0x20 | 0x200
"""`inspect.CO_GENERATOR | CO_ASYNC_GENERATOR`; importing inspect costs more than all of this module."""


def callable_name(function: Any) -> str:
    """A name for people and labels: at most 40 of the characters A-Z a-z 0-9 _ . and -."""
    inner = written(function)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", str(name)).strip("-.")[:_MAX_NAME] or "function"


def source_file(function: Any) -> Path | None:
    """The file whose project the function belongs to; None for notebooks, the prompt and `-c`."""
    inner = written(function)
    owner = inner if isinstance(inner, types.FunctionType | type) else type(inner)
    module = sys.modules.get(getattr(owner, "__module__", None) or "")
    candidates = (
        getattr(module, "__file__", None),
        inner.__globals__.get("__file__") if isinstance(inner, types.FunctionType) else None,
    )
    for candidate in candidates:
        if isinstance(candidate, str) and Path(candidate).is_file():
            return Path(candidate)
    return None


def written(function: Any) -> Any:
    """What a person wrote: inside partials, methods and decorators that keep `__wrapped__`.

    A callable instance stands for its class's `__call__`.
    """
    seen: set[int] = set()
    function = _inside(function)
    while id(function) not in seen and callable(getattr(function, "__wrapped__", None)):
        seen.add(id(function))
        function = _inside(function.__wrapped__)
    return function


def _inside(function: Any) -> Any:
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType | staticmethod | classmethod):
            function = function.__func__
        elif isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
            return function
        elif isinstance(function, BoundMethod):
            function = function.__wrapped__
        else:
            call = type(function).__dict__.get("__call__", function)
            return call if isinstance(call, types.FunctionType) else function


def check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError, as the call itself would, if the arguments do not fit the signature."""
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins without a signature: the job will tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as exc:
        hint = ""
        if sys.version_info >= (3, 13) and "cls" in str(exc):
            hint = (
                ". Since Python 3.13 @classmethod above @run does not pass the class to run_async: "
                "swap the two decorators"
            )
        raise TypeError(f"{callable_name(function)}(): {exc}{hint}") from None
