"""Connections to a service: used again, never when they are over, and through a proxy where there is one."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from kinetic_core._runner.http_pool import HttpPool
from tests.conftest import wait_for
from tests.serving import Answering, serving


class Service(Answering):
    """Answers with the client's port, which names the connection. `/last` says nothing of closing it then."""

    protocol_version = "HTTP/1.1"
    ended: ClassVar[list[bytes]] = []
    """Connections that are closed, by what they answer; one of an earlier test may end late."""
    together = threading.Barrier(2, timeout=90)

    def do_GET(self) -> None:
        if self.path == "/together":
            self.together.wait()
        self.answer(200, str(self.client_address[1]).encode())
        self.close_connection = self.path == "/last"

    def finish(self) -> None:
        super().finish()
        self.connection.close()
        self.ended.append(str(self.client_address[1]).encode())


@pytest.fixture
def pool() -> Iterator[HttpPool]:
    Service.ended.clear()
    with serving(Service) as place:
        pool = HttpPool(f"http://{place}")
        yield pool
        pool.close()


def get(pool: HttpPool, path: str = "/") -> bytes:
    return pool.send("GET", path, None, {}, None, 10.0).body


def test_a_connection_is_used_again(pool: HttpPool) -> None:
    assert get(pool) == get(pool)
    before = get(pool)
    pool.close()
    assert get(pool) != before


def test_two_requests_at_once_have_one_each(pool: HttpPool) -> None:
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: get(pool, "/together"), range(2)))
    assert len(set(found)) == 2
    assert get(pool) in found


def test_one_that_the_service_has_closed_is_not_used(pool: HttpPool) -> None:
    before = get(pool, "/last")
    wait_for(lambda: before in Service.ended)
    assert get(pool) != before


def test_a_proxy_is_asked_for_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    class Proxy(Answering):
        def do_CONNECT(self) -> None:
            asked.append((self.path, self.headers["Proxy-Authorization"]))
            self.answer(403)

    with serving(Proxy) as place:
        monkeypatch.setenv("https_proxy", f"http://me:p%40ss@{place}")
        with pytest.raises(OSError, match="Tunnel connection failed: 403"):
            get(HttpPool("https://storage.example"))
        monkeypatch.setenv("no_proxy", "storage.invalid")
        with pytest.raises((OSError, http.client.HTTPException)):
            get(HttpPool("https://storage.invalid"))
    assert asked == [("storage.example:443", "Basic bWU6cEBzcw==")]
