"""Requests of triggers to Airflow, which go on when nobody waits for their answers any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import airflow_provider

pytestmark = [pytest.mark.airflow, pytest.mark.attack]


def test_a_request_is_never_abandoned() -> None:
    """Airflow 3.1 takes the answer to an abandoned request for that to the next: its triggerer ends."""
    from asgiref.sync import async_to_sync

    from airflow_provider.triggers.base import asked

    async def program() -> list[str]:
        begun, answer = asyncio.Event(), asyncio.Event()
        seen: list[str] = []

        async def over_airflows_connection() -> None:
            begun.set()
            try:
                await answer.wait()
                seen.append("answered")
            except asyncio.CancelledError:
                seen.append("abandoned")
                raise

        def question() -> None:  # as the functions of `airflow.sdk` ask in a trigger
            async_to_sync(over_airflows_connection)()

        asking = asyncio.ensure_future(asked(question))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert seen == []
        answer.set()
        while not seen:
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(program()) == ["answered"]


def test_triggers_ask_airflow_in_no_other_way() -> None:
    folder = Path(airflow_provider.__file__).parent
    found = [path for path in folder.rglob("*.py") if "sync_to_async(" in path.read_text()]
    assert found == [folder / "triggers" / "base.py"]
    assert found[0].read_text().count("sync_to_async(") == 1
