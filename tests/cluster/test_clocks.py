"""Clocks ten minutes off: the client's, those of pods, and of the cluster and the store beside all others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic_core
from tests.cluster.images import GOOGLE, LOCATION, Images, own_images

MINUTES = (-10, 10)
WRONG = (
    "import time; wrong = lambda true: lambda: true() + {seconds}; "
    'time.time = time.wrong = getattr(time, "wrong", None) or wrong(time.time)'
)
"""What makes a Python live in another time, as far as `time.time()` tells; once, even if it is said twice."""
WRONG_DATES = """
import datetime
class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds={seconds})
datetime.datetime = Wrong
"""
CLIENT = """
import kinetic_core
@kinetic_core.run(accelerator="cpu", timeout=600, retries=1, lease=15)
def count():
    import os, time
    print("it is", time.time(), flush=True)
    for number in range(4):
        print("second", number, flush=True)
        time.sleep(1)
    if os.environ["KINETIC_FAILED_COUNT"] == "0":
        raise ValueError("another attempt has to do it")
    return time.time()
began = time.monotonic()
handle = count.run_async()
print(handle.result(timeout=500, stream_logs=False, cleanup=False) - time.time())
print(time.monotonic() - began)
print(handle.status().value, handle.observe().attempt)
print([line for line in handle.logs().splitlines() if "second" in line])
print(handle.job_id in [job.job_id for job in kinetic_core.list_jobs()])
told = handle.explain()
print(sum(phase.seconds for phase in told.phases))
print(sum(phase.seconds for phase in told.phases if phase.name == "function"))
handle.cleanup()
"""


def told_by_client(minutes: int, image: str | None = None) -> list[str]:
    """What the client prints whose clock is off by so much."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if image is not None:
        environment["KINETIC_CONTAINER_IMAGE"] = image
    program = (WRONG + WRONG_DATES).format(seconds=60 * minutes) + CLIENT
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check(told: list[str], apart: float, behind: float = 0) -> None:
    """The second attempt's value, the whole logs, in order; each second since the submission has its cause.

    `apart`: minutes by which the pod is ahead of the client; `behind`: the client behind the API server,
    which alone knows when the job was made.
    """
    beside, took, ended, lines, listed, explained, function = told
    assert abs(float(beside) - 60 * apart) < 60, "the clocks were off by that much"
    assert ended == "SUCCEEDED 1"
    assert lines == str([f"second {number}" for _ in range(2) for number in range(4)])
    assert listed == "True"
    assert 8 <= float(explained) < float(took) + 60 + 60 * max(0, behind)
    assert 4 <= float(function) < float(took)


@pytest.mark.promise("gke: Clock skew of 10 minutes")
@pytest.mark.usefixtures("gke")
@pytest.mark.parametrize("minutes", MINUTES)
def test_the_clients(minutes: int) -> None:
    check(told_by_client(minutes), -minutes, -minutes)


@pytest.fixture(scope="module")
def wrong_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, str]]:
    """Images whose Pythons have the wrong time, by the minutes they are ahead."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in GOOGLE.items():
            patch.setenv(name, value)
        with own_images() as images:
            for name, value in images.settings.items():
                patch.setenv(name, value)
            yield {minutes: built(images, minutes, tmp_path_factory.mktemp("image")) for minutes in MINUTES}


def built(images: Images, minutes: int, folder: Path) -> str:
    place = """"$(python3 -c 'import site; print(site.getsitepackages()[0])')/wrong_time.pth\""""
    text = f"FROM python:3.11-slim\nRUN echo '{WRONG.format(seconds=60 * minutes)}' > {place}\n"
    (folder / "Dockerfile").write_text(text)
    repository = f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}"
    made = kinetic_core.build_image(
        repository, ["cpu"], tag=f"off{minutes}", dockerfile=folder / "Dockerfile", progress=lambda _: None
    )
    return made["cpu"]


@pytest.mark.promise("gke: Clock skew of 10 minutes")
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.usefixtures("gke")
@pytest.mark.parametrize("minutes", MINUTES)
def test_those_of_pods(minutes: int, wrong_images: dict[int, str]) -> None:
    check(told_by_client(0, wrong_images[minutes]), minutes)


@pytest.mark.promise("gke: Clock skew of 10 minutes")
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.usefixtures("gke")
@pytest.mark.parametrize("minutes", MINUTES)
def test_those_of_the_cluster_and_the_store(minutes: int, wrong_images: dict[int, str]) -> None:
    """Beside which everybody else is off by the same."""
    check(told_by_client(minutes, wrong_images[minutes]), 0, -minutes)
