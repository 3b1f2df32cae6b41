"""One question at a time, its answer for some seconds; a slow one keeps nobody longer than they wish."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider.ui.places import Remembered


class Oracle:
    """Answers with how often it was asked, once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may = asyncio.Event()

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.may.wait()
        if number == 2:
            raise OSError("no route")
        return number


@pytest.mark.promise("page: Cached")
def test_many_ask_and_one_question_is_asked() -> None:
    async def scene() -> None:
        now = [0.0]
        answers: Remembered[int] = Remembered(3.0, clock=lambda: now[0])
        oracle = Oracle()
        waiting = [asyncio.create_task(answers.get("a", oracle, 5)) for _ in range(10)]
        await asyncio.sleep(0)
        oracle.may.set()
        assert await asyncio.gather(*waiting) == [1] * 10
        now[0] = 2.9
        assert await answers.get("a", oracle, 5) == 1
        now[0] = 3.0
        for _ in range(2):  # a failure is an answer too: it is not asked again at once
            with pytest.raises(OSError, match="no route"):
                await answers.get("a", oracle, 5)
        now[0] = 6.0
        assert await answers.get("a", oracle, 5) == 3

    asyncio.run(scene())


def test_who_waits_too_long_leaves_and_the_next_gets_the_answer() -> None:
    async def scene() -> None:
        answers: Remembered[int] = Remembered(3.0)
        oracle = Oracle()
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await answers.get("a", oracle, 0.001)
        oracle.may.set()
        assert await answers.get("a", oracle, 5) == oracle.asked == 1

    asyncio.run(scene())


def test_old_answers_are_forgotten() -> None:
    async def scene() -> None:
        answers: Remembered[int] = Remembered(3.0, most=2)
        oracles = [Oracle() for _ in range(4)]
        for key, oracle in enumerate(oracles):
            oracle.may.set()
            await answers.get(key, oracle, 5)
        await answers.get(3, oracles[3], 5)
        assert oracles[3].asked == 1
        with pytest.raises(OSError, match="no route"):
            await answers.get(0, oracles[0], 5)

    asyncio.run(scene())
