"""A job that turns hostile, with the rights of pods where nobody limits them, beside jobs of others."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import kinetic_core
from kinetic_core import Data
from kinetic_core._runner import object_names
from kinetic_core.errors import KineticError
from kinetic_core.job import JobStatus
from kinetic_core.jobs import collect
from kinetic_core.store.gcs import GcsObjectStore
from tests.cluster.hostile import BUCKET, Weapon
from tests.cluster.images import LOCATION, Images
from tests.conftest import Kinetic, wait_for

pytestmark = [pytest.mark.attack, pytest.mark.slow, pytest.mark.alone, pytest.mark.google]
IMAGE = os.environ.get("KINETIC_TEST_IMAGE", "")
NOWHERE = "tpu-v6e-8"
"""No node of the test cluster is one."""
WAIT = 600
"""Seconds: there is one slice of two hosts, which others may have."""


def is_stored(path: str) -> bool:
    """Ask, in a pod, whether an object is stored; ask again while nobody answers, as everybody does."""
    import time
    import urllib.error
    import urllib.request

    while True:
        try:
            urllib.request.urlopen(f"{os.environ['STORAGE_EMULATOR_HOST']}{path}", timeout=10).close()
        except urllib.error.HTTPError as exc:
            if exc.code == 404:
                return False
        except OSError:
            pass
        else:
            return True
        time.sleep(0.2)


def planted(location: str) -> None:
    """Wait, in a pod, until somebody has stored a result of this job: it was not the runner."""
    import time
    from urllib.parse import quote

    bucket, _, prefix = location.partition("/")
    name = quote(f"{prefix}/jobs/{os.environ['KINETIC_JOB_ID']}/result", safe="")
    for _ in range(600):
        if is_stored(f"/storage/v1/b/{bucket}/o/{name}"):
            return
        time.sleep(0.1)
    raise TimeoutError("nobody attacks")


def honest(location: str, number: int = 0) -> str:
    """What all victims run."""
    planted(location)
    return f"good {number}"


def listed(location: str, folder: str, file: str) -> list[str]:
    planted(location)
    return [(Path(folder) / "a").read_text(), Path(file).read_text()]


def cowsay(location: str) -> str:
    planted(location)
    import cowsay  # type: ignore[import-not-found]

    return str(cowsay.__version__)


def passed_on(location: str, value: Any) -> str:
    planted(location)
    return f"had {value}"


def better_later(location: str, number: int, switch: str) -> str:
    """Input 1 fails until the `switch` is stored."""
    planted(location)
    if number == 1 and not is_stored(f"/storage/v1/b/test-bucket/o/{switch}"):
        raise LookupError(switch)
    return f"good {number}"


class Victims:
    """Jobs of every kind, and all that is seen of them."""

    def __init__(self, location: str, repository: str, cache_volume: str, folder: Path) -> None:
        self.location, self.repository, self.cache_volume = location, repository, cache_volume
        self.values: dict[str, Any] = {}
        self.failures: dict[str, BaseException] = {}
        self.states: set[JobStatus] = set()
        (folder / "set").mkdir()
        (folder / "set/a").write_text("good data")
        self.folder = folder / "set"
        self.file = f"theirs-{secrets.token_hex(4)}/b"
        GcsObjectStore.at(BUCKET).create_if_absent(self.file, b"more good data")

    def run(self, function: Callable[..., Any], **options: Any) -> kinetic_core.RemoteCallable[..., Any]:
        common = {"accelerator": "cpu", "cpu": 0.1, "timeout": WAIT, "container_image": IMAGE}
        return kinetic_core.run(**{**common, **options})(function)

    def value(self, handle: kinetic_core.JobHandle) -> Any:
        again = kinetic_core.attach(handle.job_id)
        self.states.add(again.status())
        return handle.result(timeout=WAIT, stream_logs=False, cleanup=False)

    def single(self) -> Any:
        return self.value(self.run(honest).run_async(self.location, 1))

    def batch(self) -> Any:
        group_id = f"grp-{secrets.token_hex(4)}"
        inputs = [(self.location, number) for number in range(3)]
        batch = self.run(honest).run_async_map(inputs, group_id=group_id)
        values = batch.results(timeout=WAIT, cleanup=False)
        there = kinetic_core.attach_batch(group_id)  # who attaches believes no more
        self.states |= {status for _, status in there.statuses()}
        return [values, there.results(timeout=WAIT, cleanup=False)]

    def rerun(self) -> Any:
        group_id, switch = f"grp-{secrets.token_hex(4)}", f"switch-{secrets.token_hex(4)}"
        inputs = [(self.location, number, switch) for number in range(2)]
        job = self.run(better_later)
        first = job.run_async_map(inputs, group_id=group_id)
        with contextlib.suppress(kinetic_core.BatchError):
            first.results(timeout=WAIT, cleanup=False)
        GcsObjectStore.at(BUCKET).create_if_absent(switch, b"")
        again = job.run_async_map(inputs, group_id=group_id, skip_done=True)
        return again.results(timeout=WAIT, cleanup=False)

    def hosts(self) -> Any:
        on_slice = self.run(honest, cpu=None, accelerator="tpu-v5p-8", backend="gke")
        return self.value(on_slice.run_async(self.location, 2))

    def fallback(self) -> Any:
        options = {"accelerator": [NOWHERE, "cpu"], "capacity_timeout": 2}
        somewhere = self.run(honest, **options, timeout=180)  # what is planted may leave it without its turn
        return self.value(somewhere.run_async(self.location, 3))

    def reference(self) -> Any:
        first = self.run(honest).run_async(self.location, 4)
        wait_for(lambda: first.status().is_terminal, WAIT)
        reference = collect.result_reference(first, collect.collect(first.place, first))
        return self.value(self.run(passed_on).run_async(self.location, reference))

    def worker(self) -> Any:
        """Two calls, one after the other: whoever attacks has the time to plant the second one's number."""
        on_worker = self.run(honest, warm="5m")
        calls = []
        try:
            values = []
            for number in (5, 6):
                calls.append(on_worker.run_async(self.location, number))
                values.append(self.value(calls[-1]))
            return values
        finally:
            for worker in {call.worker for call in calls if call.worker}:
                with contextlib.suppress(KineticError):
                    kinetic_core.attach(worker).cancel()

    def data(self) -> Any:
        reads = self.run(listed, cache_volume=self.cache_volume)
        both = Data(str(self.folder)), Data(f"gs://{BUCKET}/{self.file}")
        return self.value(reads.run_async(self.location, *both))

    def requirements(self) -> Any:
        options = {"container_image": "prebuilt", "base_image_repo": self.repository}
        installs = self.run(cowsay, requirements=["cowsay==6.1"], **options)
        return self.value(installs.run_async(self.location))

    EXPECTED: ClassVar[dict[Callable[[Victims], Any], Any]] = {
        single: "good 1",
        batch: [["good 0", "good 1", "good 2"]] * 2,
        rerun: ["good 0", "good 1"],
        hosts: "good 2",
        fallback: "good 3",
        reference: "had good 4",
        worker: ["good 5", "good 6"],
        data: ["good data", "more good data"],
        requirements: "6.1",
    }

    def all(self) -> None:
        """Each in a thread of its own."""

        def collected(kind: Callable[[Victims], Any]) -> None:
            try:
                self.values[kind.__name__] = kind(self)
            except BaseException as exc:
                self.failures[kind.__name__] = exc

        threads = [threading.Thread(target=collected, args=(kind,)) for kind in self.EXPECTED]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def expected(self) -> dict[str, Any]:
        return {kind.__name__: value for kind, value in self.EXPECTED.items()}

    def told(self) -> str:
        """Everything that a person or a program was told of them."""
        errors = "".join("".join(traceback.format_exception(exc)) for exc in self.failures.values())
        return f"{self.values!r}\n{errors}\n{self.states!r}"


@pytest.fixture
def location() -> str:
    """A prefix of this test's own: what is stored there does not outlive the attack."""
    return f"{BUCKET}/{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def repository(own_repository: Images) -> str:
    """Where base images are, of which none is in the jobs bucket."""
    place = f"{LOCATION}-docker.pkg.dev/test-project/kn-{own_repository.cluster}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own_repository.settings.items():
            patch.setenv(name, value)
        file = Path(__file__).parent / "Dockerfile.base"
        kinetic_core.build_image(place, ["cpu"], dockerfile=file, progress=lambda _: None)
    return place


@pytest.fixture
def victims(images: Images, location: str, repository: str, claim: str, tmp_path: Path) -> Victims:
    return Victims(location, repository, claim, tmp_path)


@pytest.fixture(params=[False, True], ids=["plants", "destroys"])
def attack(
    request: pytest.FixtureRequest, victims: Victims, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Weapon, bool]]:
    """A hostile job that runs, what it is told apart by, and whether it destroys."""
    weapon = Weapon.forged()
    before = victims.run(honest).run_async(victims.location)  # waits for its own result
    monkeypatch.setenv("KINETIC_CONTAINER_IMAGE", IMAGE)
    handle = weapon.start(victims.location, emulator, victims.cache_volume, destroys=request.param)
    monkeypatch.delenv("KINETIC_CONTAINER_IMAGE")
    store = GcsObjectStore.at(victims.location)
    wait_for(lambda: store.find(object_names.result(before.job_id)) is not None, 120)
    yield weapon, request.param
    with contextlib.suppress(KineticError):
        handle.cancel()


def test_nothing_of_a_hostile_job_is_executed_or_believed(
    victims: Victims, attack: tuple[Weapon, bool], kinetic: Kinetic
) -> None:
    """Beside one that only plants all victims have their values; where it destroys each may fail by name."""
    weapon, destroys = attack
    victims.all()
    if not destroys:
        assert victims.failures == {}
        assert victims.values == victims.expected
    wrong = {kind: value for kind, value in victims.values.items() if value != victims.expected[kind]}
    assert wrong == {}
    unnamed = {kind: exc for kind, exc in victims.failures.items() if not isinstance(exc, KineticError)}
    assert unnamed == {}
    shown = [kinetic(*words) for words in (["jobs", "list", "--json"], ["batch", "list", "--json"])]
    seen = victims.told() + "".join(each.out + each.err for each in shown)
    assert weapon.token not in seen
    doubles = [job for job in shown[0].json["jobs"] if job["func_name"] == "planted"]
    assert doubles or destroys  # who destroys spares nothing of his own either
    assert {job["status"] for job in doubles} <= {JobStatus.NOT_FOUND.value}
    assert not weapon.was_executed()
