"""Asking for many things at once, without keeping anybody who has had enough."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(function: Callable[[T], R], things: Iterable[T], at_once: int) -> list[R]:
    """`function` of each, in their order, in so many threads; raises what it raised of the first that failed.

    An executor waits for its threads, whatever happens: Ctrl-C would end nothing before a silent service has
    answered.
    """
    asked: list[tuple[T, Future[R]]] = [(thing, Future()) for thing in things]
    left = deque(asked)

    def work() -> None:
        while left:
            try:
                thing, future = left.popleft()
            except IndexError:
                return  # another thread was quicker
            try:
                future.set_result(function(thing))
            except BaseException as exc:  # noqa: BLE001  raised where it is waited for
                future.set_exception(exc)

    for _ in asked[:at_once]:
        threading.Thread(target=work, daemon=True).start()
    return [future.result() for _, future in asked]
