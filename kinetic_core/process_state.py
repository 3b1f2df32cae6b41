"""State that belongs to one process: connections, threads and locks that a forked child must not use.

A child that used its parent's connections would read the answers to its parent's requests, and a lock that a
thread of the parent held while it forked is never let go in the child.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Made = TypeVar("Made")

_inherited: list[Any] = []
"""What the parent had. It is kept: letting go of it could wait for locks that nobody lets go any more."""


class PerProcess(Generic[Parameters, Made]):
    """A function whose results are kept, as by `functools.cache`; a forked child makes its own."""

    def __init__(self, make: Callable[Parameters, Made]) -> None:
        functools.update_wrapper(self, make)
        self._make = make
        self._kept: Any = functools.cache(make)
        os.register_at_fork(after_in_child=self._begin_anew)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Made:
        found: Made = self._kept(*args, **kwargs)
        return found

    def cache_clear(self) -> None:
        """Forget the results."""
        self._kept.cache_clear()

    def _begin_anew(self) -> None:
        _inherited.append(self._kept)
        self._kept = functools.cache(self._make)


def in_forked_children(begin_anew: Callable[[], object]) -> None:
    """Call it in each forked child: it replaces what belongs to the parent, and returns that to be kept."""
    os.register_at_fork(after_in_child=lambda: _inherited.append(begin_anew()))
