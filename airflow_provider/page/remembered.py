"""Answers kept for a few seconds: however many browsers ask, the question is asked once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class Remembered(Generic[Answer]):
    """Asks each question once at a time, and keeps its answer, or its failure, for `seconds`.

    For one event loop. The newest `most` answers are kept; a question under way is never asked again.
    """

    def __init__(self, seconds: float, most: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._answers: dict[Hashable, tuple[asyncio.Future[Answer], float]] = {}

    async def get(
        self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, Answer]], timeout: float
    ) -> Answer:
        """The answer of `ask()`. Raises what it raises, TimeoutError after `timeout` seconds of waiting.

        A question that takes longer goes on, and whoever asks next gets its answer.
        """
        known = self._answers.get(key)
        if known is None or (known[0].done() and self._clock() >= known[1]):
            self._answers.pop(key, None)
            known = (asyncio.ensure_future(ask()), float("inf"))
            self._answers[key] = known
            known[0].add_done_callback(lambda done: self._keep(key, done))
            self._forget()
        return await asyncio.wait_for(asyncio.shield(known[0]), timeout)

    def _keep(self, key: Hashable, done: asyncio.Future[Answer]) -> None:
        """Counted from the moment the answer is there. A failure nobody waits for any more is no news."""
        if not done.cancelled():
            done.exception()
        if key in self._answers and self._answers[key][0] is done:
            self._answers[key] = (done, self._clock() + self._seconds)

    def _forget(self) -> None:
        for key in [key for key, (future, _) in self._answers.items() if future.done()]:
            if len(self._answers) <= self._most:
                return
            del self._answers[key]
