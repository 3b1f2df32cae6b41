"""Requests that do not depend on each other, sent at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def at_once(*actions: Callable[[], object]) -> None:
    """Carry out actions at the same time, the last one in this thread; return when all of them have ended.

    Raises what the first of them, in their order, has raised.
    """
    errors: dict[int, BaseException] = {}

    def carry_out(number: int) -> None:
        try:
            actions[number]()
        except BaseException as exc:  # noqa: BLE001  it is raised where the caller waits
            errors[number] = exc

    *others, own = range(len(actions))
    threads = []
    for number in others:
        thread = threading.Thread(target=carry_out, args=(number,), name="kinetic-request", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # at the end of an interpreter
            carry_out(number)
        else:
            threads.append(thread)
    carry_out(own)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
