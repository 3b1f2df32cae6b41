"""Triggers that wait for one build of an image. No Airflow starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.airflow


class Build:
    """A build that ends at the third look, and counts them."""

    def __init__(self, failure: str = "") -> None:
        self.looks, self._failure = 0, failure

    def look(self, say: Callable[[str], None]) -> str | None:
        from kinetic_core.errors import ImageError

        self.looks += 1
        say(f"Step #{self.looks}")
        if self.looks < 3:
            return None
        if self._failure:
            raise ImageError(self._failure)
        return "sha256:1"


@pytest.mark.promise("scale: One follower of an image's build for all that wait for it")
@pytest.mark.parametrize(("failure", "end"), [("", ("built", "")), ("no disk", ("failed", "no disk"))])
def test_many_triggers_look_at_a_build_once(failure: str, end: tuple[str, str]) -> None:
    from airflow_provider.triggers.kinetic import followed

    builds = [Build(failure) for _ in range(50)]

    async def wait(build: Build) -> tuple[tuple[str, str] | None, list[str]]:
        async with followed(("p", "b"), build, 0.01) as (follower, task):
            await task
            return follower.end, follower.lines

    async def all_of_them() -> list[tuple[tuple[str, str] | None, list[str]]]:
        return list(await asyncio.gather(*map(wait, builds)))

    found = asyncio.run(all_of_them())
    assert found == [(end, ["Step #1", "Step #2", "Step #3"])] * 50
    assert sum(build.looks for build in builds) == 3


def test_a_build_is_left_when_nobody_waits_for_it() -> None:
    from airflow_provider.triggers.kinetic import followed

    class Endless(Build):
        def look(self, say: Callable[[str], None]) -> None:
            self.looks += 1

    async def leave_and_return() -> list[int]:
        looks = []
        for build in (Endless(), Endless()):
            async with followed(("p", "b"), build, 0.01):
                while not build.looks:
                    await asyncio.sleep(0.01)
            looks.append(build.looks)
        return looks

    assert all(asyncio.run(leave_and_return()))


def waiting(map_index: int, task_id: str = "train") -> Any:
    """The trigger of an instance of a mapped task, as its triggerer has made it."""
    from airflow_provider.triggers.kinetic import KineticBuildTrigger

    trigger = KineticBuildTrigger({"project": "p", "build_id": "b"}, 0.0)
    place = {"dag_id": "dag", "run_id": "run", "task_id": task_id, "map_index": map_index}
    object.__setattr__(trigger, "task_instance", SimpleNamespace(**place))
    return trigger


@pytest.mark.promise("scale: One follower of an image's build for all that wait for it")
def test_the_first_instance_that_waits_shows_the_build() -> None:
    """The one of index 0 may have been skipped; each task of several shows it once."""
    from airflow_provider.triggers.kinetic import BuildFollower

    follower = BuildFollower(Build())
    triggers = [waiting(index) for index in (7, 3, 5)]
    assert [each.shows(follower) for each in triggers * 2] == [True, False, False] * 2
    assert waiting(4, "another").shows(follower)
    assert waiting(-1, "not_mapped").shows(follower)


@pytest.mark.promise("scale: One follower of an image's build for all that wait for it")
def test_another_shows_the_build_if_the_first_is_ended_early() -> None:
    from airflow_provider.triggers.kinetic import BuildFollower

    follower = BuildFollower(Build())
    first, second, third = (waiting(index) for index in range(3))
    assert [each.shows(follower) for each in (first, second, third)] == [True, False, False]
    third.leave(follower)  # which shows nothing
    assert not second.shows(follower)
    first.leave(follower)
    assert [each.shows(follower) for each in (second, third)] == [True, False]
    follower.end = "built", ""
    second.leave(follower)
    assert not third.shows(follower)  # it has been shown
