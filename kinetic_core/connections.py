"""What one client holds open: connections, credentials, watches and what was read with them.

A forked child makes its own. A child that used its parent's connections would read the answers to its
parent's requests, and a lock that a thread of the parent held while it forked is never released in the child.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable
from weakref import WeakSet

from kinetic_core.errors import InvalidRequest
from kinetic_core.settings import Settings, read_settings, set_up_logging

Made = TypeVar("Made")


@runtime_checkable
class Closable(Protocol):
    """What is closed with its client."""

    def close(self) -> None:
        """End it. Idempotent."""


class Held:
    """What one client holds in this process, by key. Safe for threads; a forked child begins with nothing."""

    def __init__(self, *, reopens: bool = False) -> None:
        """Hold nothing. One that `reopens` can be used again after it was closed."""
        self._made: dict[Hashable, Any] = {}
        self._reopens = reopens
        self._is_closed = False
        _all_held.add(self)

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what is held under a key, made with the first call.

        Threads that ask at the same time may each make one: all get the first, and the others are closed.
        """
        if self._is_closed:
            raise InvalidRequest("this client is closed: make another kinetic_core.Client")
        found = self._made.get(key, _NOTHING)
        if found is not _NOTHING:
            return cast("Made", found)
        made = make()
        kept = self._made.setdefault(key, made)
        if kept is not made and isinstance(made, Closable):
            made.close()
        return cast("Made", kept)

    def close(self) -> None:
        """Close and forget everything, the newest first."""
        self._is_closed = not self._reopens
        while self._made:
            _, made = self._made.popitem()
            if isinstance(made, Closable):
                made.close()

    def begin_anew(self) -> object:
        """Forget everything without closing it; return it for a forked child to keep."""
        parents, self._made = self._made, {}
        return parents


_NOTHING = object()
_all_held: WeakSet[Held] = WeakSet()
_inherited: list[object] = []
"""What the parent had. It is kept: releasing it could wait for locks that nobody releases any more."""


def _begin_anew() -> None:
    _inherited.extend(held.begin_anew() for held in list(_all_held))


os.register_at_fork(after_in_child=_begin_anew)


class Connections:
    """Settings of a client, and what it holds open with them. Nothing is opened before it is needed.

    `with_settings` returns a view with other settings on the same held objects, each of which is held under
    all that it was made from.
    """

    def __init__(self, settings: Settings, held: Held | None = None) -> None:
        self.settings = settings
        set_up_logging()
        self._held = Held() if held is None else held

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what is held under a key, made with the first call in this process.

        `key` begins with what makes it, a class or a function, and names everything that it is made from.
        """
        return self._held.get(key, make)

    def with_settings(self, settings: Settings) -> Self:
        """Return a view with other settings, which shares what is held."""
        return self if settings is self.settings else type(self)(settings, self._held)

    def with_arguments(self, **arguments: str | None) -> Self:
        """Return a view with the arguments of a call, as `Settings.with_arguments`."""
        return self.with_settings(self.settings.with_arguments(**arguments))

    def close(self) -> None:
        """Close everything, for all views. Any further use raises InvalidRequest."""
        self._held.close()

    def __repr__(self) -> str:
        return f"<connections of {self.settings.profile or 'the environment'}>"


_default = Held(reopens=True)
"""What the default client holds: the one thing of this kind that belongs to a module."""


def default_connections() -> Connections:
    """Return the connections of module-level functions, with the settings as environment and profile are now.

    What is held is made once in a process; after the default client was closed, once more.
    """
    return Connections(read_settings(), _default)
