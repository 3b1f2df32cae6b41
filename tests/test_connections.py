"""What a client holds open: made once, closed with it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import Closable, Held
from kinetic_core.errors import InvalidRequest


class Connection:
    """Something that is open until it is closed."""

    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def test_of_two_made_at_once_the_second_is_closed() -> None:
    held, both, made = Held(), threading.Barrier(2, timeout=90), list[Connection]()

    def make() -> Connection:
        connection = Connection()
        made.append(connection)
        both.wait()
        return connection

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: held.get("key", make), range(2))
    assert first is second
    assert [each for each in made if each.is_open] == [first]


def test_what_was_closed_is_not_used_again() -> None:
    held = Held()
    connection = held.get("key", Connection)
    held.close()
    assert not connection.is_open
    with pytest.raises(InvalidRequest, match="is closed"):
        held.get("key", Connection)


@pytest.mark.parametrize("backend", [GkeBackend, LocalBackend])
def test_a_backend_can_be_held(backend: type) -> None:
    """It is not open itself: what it uses is held, and closed, besides."""
    assert not issubclass(backend, Closable)
