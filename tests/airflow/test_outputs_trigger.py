"""Jobs that stored outputs start DAGs. Only the last test needs a running Airflow."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import pytest

import kinetic_core
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.errors import InvalidRequest

if TYPE_CHECKING:
    from airflow_provider.hooks.kinetic import KineticHook

pytestmark = pytest.mark.airflow


def learn(name: str) -> None:
    import os
    from pathlib import Path

    Path(os.environ["KINETIC_OUTPUT_DIR"], name).write_text("weights")


def trigger(hook: KineticHook, **changed: Any) -> Any:
    """What a triggerer makes of a row."""
    from airflow_provider.triggers.outputs import KineticOutputsTrigger

    given = {"function": "learn", "pattern": "*.ckpt", "conn_id": hook.conn_id, **changed}
    _, row = KineticOutputsTrigger(**given).serialize()
    made = KineticOutputsTrigger(**json.loads(json.dumps(row)))
    made.answer_interval = 0.01
    return made


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KineticHook]:
    """A hook whose connection says that jobs run here."""
    from airflow_provider.config import config
    from airflow_provider.hooks.kinetic import KineticHook

    conn_id = f"lab_{token_hex(4)}"  # hooks of one connection share a client
    connection = {"conn_type": "kinetic", "password": "hidden", "extra": {"backend": "local"}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_VAR_KINETIC_DEPLOYMENT", "this")
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    monkeypatch.setenv("AIRFLOW__KINETIC__OUTPUTS_POLL_INTERVAL", "1")
    monkeypatch.setenv("AIRFLOW__KINETIC__OUTAGE_INTERVAL", "0.1")
    config.cache_clear()
    yield KineticHook(conn_id)
    config.cache_clear()


def is_stored(folder: Path, part: str) -> bool:
    """Whether there is a file with this in its path. Jobs make and remove directories meanwhile."""
    return any(part in f"{root}/{name}" for root, _, names in os.walk(folder) for name in names)


async def begun(folder: Path) -> None:
    while not is_stored(folder, "/since.json"):
        await asyncio.sleep(0.05)


async def first_event(of: Any, make: Any) -> tuple[Any, AsyncIterator[Any]]:
    """The first event of a trigger which began before `make` was called, and the trigger's further events."""
    events = of.run()
    waiting = asyncio.ensure_future(anext(events))
    await make()
    return (await waiting).payload, events


def test_a_job_of_a_script_is_an_event(hook: KineticHook, tmp_path: Path) -> None:
    async def program() -> None:
        jobs = []

        async def submit() -> None:
            await begun(tmp_path)
            jobs.extend(hook.submit(learn, [name], accelerator="cpu") for name in ("a.txt", "b.ckpt"))

        payload, events = await first_event(trigger(hook), submit)
        async with aclosing(events):  # type: ignore[type-var]
            assert (payload["job_id"], payload["function"]) == (jobs[1].job_id, "learn")
            assert (payload["names"], payload["more"]) == (["b.ckpt"], False)
            further = asyncio.ensure_future(anext(events))
            while not is_stored(tmp_path, f"/told/{jobs[1].job_id}/"):
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.5)
            assert not further.done()
            further.cancel()
            await asyncio.wait([further])

    asyncio.run(program())


@pytest.mark.promise("scale: An asset watcher on outputs")
def test_killed_right_after_an_event_it_sends_it_again(hook: KineticHook, tmp_path: Path) -> None:
    async def program() -> None:
        async def submit() -> None:
            await begun(tmp_path)
            hook.submit(learn, ["a.ckpt"], accelerator="cpu")

        first, events = await first_event(trigger(hook), submit)
        await events.aclose()  # type: ignore[attr-defined]
        async with aclosing(trigger(hook).run()) as others:
            second = (await anext(others)).payload
        assert first == second

    asyncio.run(program())


def test_an_outage_is_logged_once_and_waited_for(
    hook: KineticHook, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"AIRFLOW_CONN_{str(hook.conn_id).upper()}"
    connection = json.dumps({"conn_type": "kinetic", "extra": {"backend": "local"}})
    monkeypatch.setenv(name, json.dumps({"conn_type": "kinetic", "extra": {"bakend": "local"}}))

    async def program() -> None:
        waiting = asyncio.ensure_future(anext(trigger(hook).run()))
        await asyncio.sleep(1)
        monkeypatch.setenv(name, connection)
        await asyncio.sleep(1)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(program())
    told = [line for line in capsys.readouterr().out.splitlines() if "outputs of learn" in line]
    assert len(told) == 2
    assert "no outputs of learn are told for now" in told[0]
    assert "bakend" in told[0]
    assert "are told again" in told[1]


def test_its_row_holds_names_only_and_stays_the_same(hook: KineticHook) -> None:
    from airflow.triggers.base import BaseEventTrigger

    made = trigger(hook, impersonation_chain=["a@b", "c@d"])
    path, row = made.serialize()
    assert path == "airflow_provider.triggers.outputs.KineticOutputsTrigger"
    assert row == {
        "function": "learn",
        "pattern": "*.ckpt",
        "name": "",
        "conn_id": hook.conn_id,
        "impersonation_chain": ["a@b", "c@d"],
    }
    again = json.loads(json.dumps(row))
    assert BaseEventTrigger.hash(path, row) == BaseEventTrigger.hash(path, again)


@pytest.mark.parametrize(
    "wrong",
    [
        {"function": ""},
        {"function": learn},
        {"pattern": ""},
        {"pattern": "/a"},
        {"pattern": "a\n"},
        {"name": 1},
        {"impersonation_chain": [1]},
    ],
)
def test_a_wrong_argument_is_refused_at_once(wrong: dict[str, Any]) -> None:
    from airflow_provider.triggers.outputs import KineticOutputsTrigger

    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        KineticOutputsTrigger(**{"function": "train", **wrong})


@pytest.mark.promise("scale: An asset watcher on outputs")
def test_a_scripts_job_starts_a_dag(cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"connection_id": "kinetic_watched", "conn_type": "kinetic", "extra": '{"backend": "local"}'}
    cases.api.call("POST", "/connections", told)
    backend = LocalBackend(cases.airflow.home / "kinetic")
    ids = cases.airflow.until(
        lambda: {each.name.split("/")[1] for each in backend.store.list("watchers/")}, 120, "the watcher"
    )
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(cases.airflow.home / "kinetic"))
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parent))
    job = kinetic_core.run(accelerator="cpu", backend="local")(learn).run_async("a.ckpt")
    job.result(cleanup=False)

    def runs() -> list[str]:
        return [
            each["dag_run_id"] for each in cases.api.call("GET", "/dags/started_by_jobs/dagRuns")["dag_runs"]
        ]

    (cases.runs["started_by_jobs"],) = cases.airflow.until(runs, 300, "the job to start its DAG")
    assert cases.end("started_by_jobs") == "success"
    (payload,) = cases.value("started_by_jobs", "read")
    assert (payload["job_id"], payload["names"]) == (job.job_id, ["a.ckpt"])
    cases.airflow.until(
        lambda: [each.name for each in backend.store.list("watchers/") if job.job_id in each.name],
        120,
        "the job to be marked",
    )
    assert len(runs()) == 1
    assert {each.name.split("/")[1] for each in backend.store.list("watchers/")} == ids, "one watcher"
