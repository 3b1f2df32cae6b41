"""Jobs and the processes and threads that submit, wait for and find them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.errors import JobFailed, WaitTimeout

pytestmark = pytest.mark.usefixtures("local_jobs")

on_cpu = kinetic_core.run(accelerator="cpu")


@on_cpu
def tripled(x: int) -> int:
    return x * 3


def test_two_threads_submit_at_once() -> None:
    values: list[int] = []
    threads = [threading.Thread(target=lambda i=i: values.append(tripled(i))) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values) == [0, 3, 6]


def test_patience_ends_but_the_job_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @on_cpu
    def wait() -> str:
        while not gate.exists():
            time.sleep(0.01)
        return "done"

    handle = wait.run_async()
    with pytest.raises(WaitTimeout, match="It goes on"):
        handle.result(timeout=0.05)
    gate.touch()
    seen: list[kinetic_core.JobStatus] = []
    assert handle.result(on_status_change=seen.append) == "done"
    assert seen[-1] is kinetic_core.JobStatus.SUCCEEDED


def test_attach_from_another_process() -> None:
    handle = tripled.run_async(2)
    program = f"import kinetic_core; print(kinetic_core.attach({handle.job_id!r}).result(cleanup=False))"
    other = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ, PYTHONPATH=":".join(sys.path)),
    )
    assert other.stdout.strip() == "6"
    assert handle.result() == 6
    assert handle.job_id in [job.job_id for job in kinetic_core.list_jobs()]
    with pytest.raises(LookupError, match="no job job-0000"):
        kinetic_core.attach("job-0000")


def test_a_job_survives_its_submitter(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import kinetic_core, time, sys\n"
        "@kinetic_core.run(accelerator='cpu')\n"
        "def slow():\n    time.sleep(0.3)\n    return 'survived'\n"
        "print(slow.run_async().job_id)\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "KINETIC_PACKAGE_ROOT"}
    other = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
        env={**environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert kinetic_core.attach(other.stdout.strip()).result() == "survived"


def test_decorated_functions_unpickle_without_this_package() -> None:
    import pickletools

    import cloudpickle

    names = [
        str(argument) for _, argument, _ in pickletools.genops(cloudpickle.dumps(on_cpu(lambda x: x + 1)))
    ]
    assert not any("kinetic_core" in name for name in names)


def test_the_failure_of_a_process_is_a_job_error() -> None:
    with pytest.raises(JobFailed, match="exited with code 3") as caught:
        on_cpu(lambda: os._exit(3))()
    assert caught.value.failure is not None
    assert caught.value.failure.exit_code == 3
