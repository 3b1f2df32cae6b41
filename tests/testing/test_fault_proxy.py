"""The fault proxy does to requests what its script says, and nothing else."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from kinetic_core.testing.fault_proxy import FaultProxy
from tests.serving import Answering, serving

BROKEN = (OSError, http.client.HTTPException)


class _Echo(Answering):
    """Answers a POST with its body, a GET with ten times its path, `/stream` in chunks."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(f"POST {self.path} {body.decode()}")
        self._answer(body)

    def do_GET(self) -> None:
        self.seen.append(f"GET {self.path}")
        if self.path != "/stream":
            self._answer(self.path.encode() * 10)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (b"one ", b"two ", b"three", b""):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _answer(self, body: bytes) -> None:
        self.answer(200, body, {"Connection": "close"} if self.path == "/last" else None)


@pytest.fixture
def seen() -> list[str]:
    """The requests that reached the server."""
    return []


@pytest.fixture
def proxy(seen: list[str]) -> Iterator[FaultProxy]:
    with serving(type("Echo", (_Echo,), {"seen": seen})) as place, FaultProxy(f"http://{place}") as proxy:
        yield proxy


def ask(proxy: FaultProxy, path: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(proxy.url + path, body, timeout=5) as answer:
        content: bytes = answer.read()
        return content


def test_without_faults_everything_passes_and_is_recorded(proxy: FaultProxy, seen: list[str]) -> None:
    assert ask(proxy, "/a%2Fb?c=d") == b"/a%2Fb?c=d" * 10
    assert ask(proxy, "/p", b"body") == b"body"
    assert ask(proxy, "/stream") == b"one two three"
    assert seen == ["GET /a%2Fb?c=d", "POST /p body", "GET /stream"]
    assert [each.line for each in proxy.faults.requests] == ["GET /a/b?c=d", "POST /p", "GET /stream"]
    assert proxy.faults.count(r"(?s)POST .*bod") == 1


def test_a_status_is_answered_without_asking_the_server(proxy: FaultProxy, seen: list[str]) -> None:
    proxy.faults.answer("GET /busy", 429, headers={"Retry-After": "7"}, body=b"later", times=2)
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(proxy, "/busy")
        with caught.value as error:
            assert (error.code, error.headers["Retry-After"], error.read()) == (429, "7", b"later")
    assert seen == []
    assert ask(proxy, "/busy") == b"/busy" * 10


def test_rules_are_counted_and_skip(proxy: FaultProxy) -> None:
    proxy.faults.drop("GET", skip=1)
    proxy.faults.drop("never asked for")
    ask(proxy, "/1")
    with pytest.raises(BROKEN):
        ask(proxy, "/2")
    ask(proxy, "/3")
    assert [fault.match for fault in proxy.faults.unmet] == ["never asked for"]
    assert [each.fault is not None for each in proxy.faults.requests] == [False, True, False]
    proxy.faults.clear()
    assert proxy.faults.unmet == ()


def test_a_lost_reply_reached_the_server_a_drop_did_not(proxy: FaultProxy, seen: list[str]) -> None:
    proxy.faults.drop("POST /dropped")
    proxy.faults.lose_reply("POST /lost")
    for path in ("/dropped", "/lost"):
        with pytest.raises(BROKEN):
            ask(proxy, path, b"x")
    assert seen == ["POST /lost x"]


@pytest.mark.parametrize("path", ["/long", "/stream"])
def test_a_reply_is_cut_where_it_says(proxy: FaultProxy, path: str) -> None:
    proxy.faults.cut_reply("GET", 6)
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(proxy, path)
    assert len(caught.value.partial) == 6


def test_a_request_that_is_cut_reaches_the_server_in_part(proxy: FaultProxy, seen: list[str]) -> None:
    proxy.faults.cut_request("POST", 3)
    with pytest.raises(BROKEN):
        ask(proxy, "/p", b"abcdef")
    deadline = time.monotonic() + 5
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == ["POST /p abc"]


def test_a_delay_and_a_silence(proxy: FaultProxy, seen: list[str]) -> None:
    proxy.faults.delay("GET /late", 0.2)
    began = time.monotonic()
    assert ask(proxy, "/late") == b"/late" * 10
    assert time.monotonic() - began >= 0.2
    proxy.faults.silence("GET /silent", 60)
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=0.2)
    connection.request("GET", "/silent")
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert seen == ["GET /late", "GET /silent"]


def test_a_silence_in_the_middle_and_every_connection_broken(proxy: FaultProxy) -> None:
    proxy.faults.silence("GET", 0.1, after_bytes=4)
    with pytest.raises(http.client.IncompleteRead):
        ask(proxy, "/stream")
    proxy.faults.silence("GET", 60, after_bytes=4)
    threading.Timer(0.2, proxy.disconnect).start()
    with pytest.raises(BROKEN):
        ask(proxy, "/long")


def test_it_closes_at_once_whoever_closed_first(proxy: FaultProxy) -> None:
    assert ask(proxy, "/last") == b"/last" * 10
    proxy.close()  # else the test hangs


def test_a_server_that_is_away_is_a_broken_connection() -> None:
    with FaultProxy("http://127.0.0.1:1") as proxy, pytest.raises(BROKEN):
        ask(proxy, "/")
