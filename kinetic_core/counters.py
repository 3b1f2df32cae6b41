"""Events inside that are worth counting, told to whoever measures this process: nobody by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Listener = Callable[[str, Mapping[str, str]], object]
"""Gets the name of an event and what kind of it this was. It must not raise, and is called in any thread."""

_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Tell a listener of every event from now on; once, however often this is called with it."""
    if listener not in _listeners:
        _listeners.append(listener)


def count(event: str, **kinds: str) -> None:
    """Something happened."""
    for listener in _listeners:
        listener(event, kinds)
