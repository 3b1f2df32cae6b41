"""Workers that may not defer wait for the build of an image themselves. No Airflow starts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.google_project import FakeGoogle
from tests.serving import Answering, serving

pytestmark = pytest.mark.airflow


class Services(Answering):
    """Cloud Build, the registry, and of Cloud Storage as much as a build needs; packs are refused."""

    google: FakeGoogle
    objects: dict[str, bytes]

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        name = unquote(split.path.partition("/o/")[2])
        if not split.path.startswith("/storage/"):
            self.answer(*self.google.ask("GET", self.path))
        elif name and "alt=media" in split.query:
            found = self.objects.get(name)
            self.answer(404 if found is None else 200, found or b"")
        elif name:
            self.answer(200 if name in self.objects else 404, self._entry(name))
        else:
            prefix = parse_qs(split.query).get("prefix", [""])[0]
            self.answer(
                200, {"items": [self._entry(each) for each in self.objects if each.startswith(prefix)]}
            )

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/batch/"):
            self.answer(403, {})
        elif not self.path.startswith("/upload/"):
            status, made = self.google.ask("POST", self.path, json.loads(content))
            build = made["metadata"]["build"]["id"]
            self.objects[f"log-{build}.txt"] = b"Step #0: resolving\n"
            self.answer(status, made)
        else:
            edge = b"--" + self.headers["Content-Type"].partition("boundary=")[2].encode()
            facts, body = (each.partition(b"\r\n\r\n")[2] for each in content.split(edge)[1:3])
            name = json.loads(facts)["name"]
            taken = name in self.objects and "ifGenerationMatch=0" in self.path
            self.objects.setdefault(name, body.removesuffix(b"\r\n"))
            self.answer(412 if taken else 200, self._entry(name))

    def do_DELETE(self) -> None:
        self.answer(204)

    def _entry(self, name: str) -> dict[str, str]:
        size, at = len(self.objects.get(name, b"")), "2026-01-01T00:00:00Z"
        return {"name": name, "size": str(size), "generation": "1", "updated": at, "timeCreated": at}


@contextmanager
def built_by(google: FakeGoogle, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings of somebody whose images are built by `google`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    kind = type("Own", (Services,), {"google": google, "objects": {}})
    with serving(kind) as place:
        account = {"type": "service_account", "private_key": key.decode(), "client_email": "a@p"}
        account["universe_domain"] = "invalid"  # then a token is signed here, and nobody is asked
        (folder / "account.json").write_text(json.dumps({**account, "token_uri": f"http://{place}/token"}))
        for name, value in {
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "account.json"),
            "STORAGE_EMULATOR_HOST": f"http://{place}",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBUILD": f"http://{place}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_ARTIFACTREGISTRY": f"http://{place}/",
            "KINETIC_PROJECT": "p",
            "KINETIC_PACKAGE_ROOT": str(Path(__file__).parent),
        }.items():
            monkeypatch.setenv(name, value)
        yield


class Worker:
    """A worker with an instance of a task, what it has logged, and what it has pushed."""

    def __init__(
        self,
        map_index: int = -1,
        requirement: str = "six",
        *,
        is_batch: bool = False,
        deferrable: bool = False,
    ) -> None:
        """Make it. An image that was built in this process is remembered: each needs a `requirement`."""
        from airflow.sdk import DAG

        from airflow_provider.operators.batch import KineticBatchOperator
        from airflow_provider.operators.kinetic import KineticOperator

        operator = KineticBatchOperator if is_batch else KineticOperator

        ti = {"dag_id": "dag", "run_id": "run", "task_id": "task", "map_index": map_index}
        self.xcoms: dict[str, Any] = {}
        self.lines: list[str] = []
        own = SimpleNamespace(
            xcom_push=lambda key, value: self.xcoms.update({key: value}),
            xcom_pull=lambda **asked: self.xcoms.get(asked["key"]),
        )
        began = SimpleNamespace(start_date=datetime(2026, 1, 1, tzinfo=UTC))
        ti_now = SimpleNamespace(**ti, max_tries=0, try_number=1, **vars(own))
        self.context: Any = {"ti": ti_now, "dag_run": began}
        with DAG("dag", schedule=None):
            self.operator = operator(
                task_id="task",
                python_callable=double,
                op_args=[[21] if is_batch else 21],
                accelerator="cpu",
                backend="gke",
                requirements=[requirement],
                deferrable=deferrable,
            )
        self.operator.build_interval, self.operator.submit_patience = 0.01, 1.0
        kind = type(self.operator)
        self.operator.__class__ = type(kind.__name__, (kind,), {"log": _Log(self.lines)})


class _Log(logging.Logger):
    def __init__(self, lines: list[str]) -> None:
        super().__init__("of an operator", logging.INFO)
        self._lines = lines

    def handle(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def double(number: int) -> int:
    return 2 * number


STEP = "Step #0: resolving"


@pytest.mark.parametrize(("map_index", "shown"), [(0, 0), (-1, 1)])
def test_whoever_has_started_a_build_shows_its_log(
    map_index: int, shown: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a mapped task nobody else does, not even the first instance."""
    from airflow.providers.common.compat.sdk import AirflowTaskTimeout

    from airflow_provider.records import BUILD_KEY, BuildWait
    from kinetic_core.errors import ImageError

    google = FakeGoogle(looks=10)
    google.ends = ["FAILURE"]
    starter, other = Worker(7), Worker(map_index)
    starter.operator.execution_timeout = timedelta(0)
    with built_by(google, tmp_path, monkeypatch):
        with pytest.raises(AirflowTaskTimeout, match=r"task\[7\].*the image is still being built"):
            starter.operator.execute(starter.context)
        with pytest.raises(ImageError, match="not built: FAILURE"):
            other.operator.execute(other.context)
    assert len(google.builds) == 1
    assert [each.lines.count(STEP) for each in (starter, other)] == [1, shown]
    for worker in (starter, other):
        wait = BuildWait.from_value(worker.xcoms[BUILD_KEY])
        assert wait is not None
        assert wait.began <= (wait.ended or 0.0) <= (wait.resumed or 0.0)


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_worker_goes_on_once_its_image_is_built(
    is_batch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kinetic_core.errors import StoreRefused

    google, worker = FakeGoogle(looks=4), Worker(-1, "attrs" if is_batch else "idna", is_batch=is_batch)
    with built_by(google, tmp_path, monkeypatch), pytest.raises(StoreRefused, match="cluster-jobs"):
        worker.operator.execute(worker.context)
    assert worker.lines[-1] == "uploading"
    assert worker.lines.count(STEP) == 1
    assert len(google.builds) == 1


def test_a_task_notes_when_it_waited_for_its_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first deferral for it, however it ends then: a trigger that breaks starts no other wait."""
    from airflow.providers.common.compat.sdk import TaskDeferred

    from airflow_provider.records import BUILD_KEY, BuildWait
    from kinetic_core.errors import ImageError

    worker = Worker(deferrable=True)
    with built_by(FakeGoogle(looks=10), tmp_path, monkeypatch):
        with pytest.raises(TaskDeferred):
            worker.operator.execute(worker.context)
        first = BuildWait.from_value(worker.xcoms[BUILD_KEY])
        assert first is not None
        with pytest.raises(TaskDeferred):
            worker.operator.execute(worker.context)
        assert BuildWait.from_value(worker.xcoms[BUILD_KEY]) == first
    assert (first.try_number, first.ended, first.resumed) == (1, None, None)
    assert first.page.startswith("https://console.cloud.google.com/cloud-build/builds;")
    event = {"status": "failed", "message": "no disk", "deadline": None, "ended": first.began + 60.0}
    with pytest.raises(ImageError, match="no disk"):
        worker.operator.execute_after_build(worker.context, event, 1)
    last = BuildWait.from_value(worker.xcoms[BUILD_KEY])
    assert last is not None
    assert (last.began, last.ended) == (first.began, event["ended"])
    assert last.resumed is not None
