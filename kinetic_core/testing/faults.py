"""What goes wrong with which request: a script that a test writes and a faulty server plays."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import unquote

_BODY_SHOWN = 4096


class Act(StrEnum):
    """What a fault does to a request."""

    ANSWER = "answer"
    """Answered here with a status, without being passed on."""
    DELAY = "delay"
    """Passed on some seconds later."""
    DROP = "drop"
    """The connection is closed, and nothing is passed on."""
    LOSE_REPLY = "lose reply"
    """Passed on and done; then the connection is closed without an answer."""
    CUT_REPLY = "cut reply"
    """The connection is closed in the middle of the reply's body."""
    CUT_REQUEST = "cut request"
    """A part of the request's body is passed on; then both connections are closed."""
    SILENCE = "silence"
    """Passed on; the reply comes to a stop, for some seconds, and the connection is closed then."""


@dataclass(frozen=True)
class Fault:
    """One rule of the script: what happens to requests that `match`, after `skip` of them, `times` times.

    `match` is a regular expression that is searched in `METHOD /path?query` (unquoted), a line feed and the
    first 4,096 bytes of the request's body; `^` and `$` are ends of lines. `times` None means always.
    """

    match: str
    act: Act
    times: int | None = 1
    skip: int = 0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    after_bytes: int = 0


@dataclass(frozen=True)
class Request:
    """A request that arrived: `line` is `METHOD /path?query`, unquoted; `fault` is what happened to it."""

    line: str
    body: bytes
    fault: Fault | None


class Faults:
    """A script of faults and the record of all requests. Of the rules that match, the first applies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[tuple[Fault, list[int]]] = []
        self._requests: list[Request] = []

    @property
    def requests(self) -> tuple[Request, ...]:
        """Every request so far, in the order of arrival."""
        with self._lock:
            return tuple(self._requests)

    def count(self, match: str) -> int:
        """How many requests so far match, as a fault would."""
        return sum(
            bool(re.search(match, _text(each.line, each.body), re.MULTILINE)) for each in self.requests
        )

    @property
    def unmet(self) -> tuple[Fault, ...]:
        """The faults that never happened: a test that ends with some did not test what it meant to."""
        with self._lock:
            return tuple(fault for fault, (_, hits) in self._rules if not hits)

    def clear(self) -> None:
        """Forget the faults; requests stay recorded."""
        with self._lock:
            self._rules.clear()

    def add(self, fault: Fault) -> None:
        """Append a rule. Raises re.error for a `match` that is no regular expression."""
        re.compile(fault.match)
        with self._lock:
            self._rules.append((fault, [0, 0]))

    def answer(
        self,
        match: str,
        status: int,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        times: int | None = 1,
        skip: int = 0,
    ) -> None:
        """Answer with a status (and a body, and headers such as Retry-After); pass nothing on."""
        self.add(Fault(match, Act.ANSWER, times, skip, status=status, headers=dict(headers or {}), body=body))

    def delay(self, match: str, seconds: float, *, times: int | None = 1, skip: int = 0) -> None:
        """Pass requests on later."""
        self.add(Fault(match, Act.DELAY, times, skip, seconds=seconds))

    def drop(self, match: str, *, times: int | None = 1, skip: int = 0) -> None:
        """Close the connection, with nothing passed on."""
        self.add(Fault(match, Act.DROP, times, skip))

    def lose_reply(self, match: str, *, times: int | None = 1, skip: int = 0) -> None:
        """Let the server act, then close the connection without its answer."""
        self.add(Fault(match, Act.LOSE_REPLY, times, skip))

    def cut_reply(self, match: str, after_bytes: int, *, times: int | None = 1, skip: int = 0) -> None:
        """Close the connection after some bytes of the reply's body."""
        self.add(Fault(match, Act.CUT_REPLY, times, skip, after_bytes=after_bytes))

    def cut_request(self, match: str, after_bytes: int, *, times: int | None = 1, skip: int = 0) -> None:
        """Break off after some bytes of the request's body have been passed on."""
        self.add(Fault(match, Act.CUT_REQUEST, times, skip, after_bytes=after_bytes))

    def silence(
        self, match: str, seconds: float, *, after_bytes: int = 0, times: int | None = 1, skip: int = 0
    ) -> None:
        """Send nothing, or nothing more after some bytes of the reply's body, with the connection open.

        It is closed after `seconds`.
        """
        self.add(Fault(match, Act.SILENCE, times, skip, seconds=seconds, after_bytes=after_bytes))

    def take(self, method: str, path: str, body: bytes) -> Fault | None:
        """Record a request; the fault that happens to it, if any."""
        line, start = f"{method} {unquote(path)}", body[:_BODY_SHOWN]
        text = _text(line, start)
        with self._lock:
            fault = next((fault for fault, seen in self._rules if _applies(fault, seen, text)), None)
            self._requests.append(Request(line, start, fault))
            return fault


def _applies(fault: Fault, seen: list[int], text: str) -> bool:
    """Whether a rule is due for a request; `seen` counts its matches and its hits."""
    if not re.search(fault.match, text, re.MULTILINE):
        return False
    seen[0] += 1
    due = seen[0] > fault.skip and (fault.times is None or seen[1] < fault.times)
    seen[1] += due
    return due


def _text(line: str, body: bytes) -> str:
    return f"{line}\n{body.decode(errors='replace')}"
