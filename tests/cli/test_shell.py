"""`kinetic shell`, on this machine, as a person at a terminal and as a script use it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import object_names
from kinetic_core.backends.local.slots import core_count
from kinetic_core.jobs.shell import shell_function
from tests.conftest import Kinetic, is_alive, wait_for
from tests.person import KINETIC, Person

pytestmark = pytest.mark.usefixtures("local_jobs")
COOKED = termios.ECHO | termios.ICANON | termios.ISIG
WATCHES = (
    "import os, signal, time;"
    "say = lambda told: os.write(1, f'{told}\\n'.encode());"
    "signal.signal(signal.SIGWINCH, lambda *_: say(os.get_terminal_size()));"
    "say(6 * 7000);"
    "[time.sleep(0.1) for _ in range(6000)]"
)
"""A program that says how large its terminal is whenever that changes.

It sleeps a little at a time: a signal that comes just before a sleep begins is not heard before that ends.
"""


@kinetic_core.run(accelerator="cpu", capture_env_vars=["PROBE_OF_SHELLS"])
def sleeps() -> None:
    import time

    print("awake", flush=True)
    time.sleep(600)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a module, which is the current directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "neighbour.py").write_text("ANSWER = 42\n")
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[kinetic_core.JobHandle]:
    """A job whose function runs."""
    monkeypatch.setenv("PROBE_OF_SHELLS", "captured")
    handle = sleeps.run_async()
    wait_for(lambda: "awake" in (handle.logs() or ""))
    yield handle
    handle.cancel()


def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KINETIC, "shell", *words], input=text, capture_output=True, text=True, timeout=120, check=False
    )


def shell_jobs() -> list[kinetic_core.JobHandle]:
    return [each for each in kinetic_core.list_jobs() if each.func_name == "shell"]


def test_a_person_types_in_the_project_and_its_pod_ends(project: Path) -> None:
    with Person(KINETIC, "shell", "--accelerator", "cpu") as person:
        person.awaits("workspace")
        assert not person.modes & COOKED  # keys go there as they are
        person.types("stty size; python3 -c 'import neighbour; print(neighbour.ANSWER * 2)'; tty\n")
        assert "30 100" in person.awaits("/dev/")
        assert "84" in person.seen
        person.types(f'python3 -c "{WATCHES}"\n')
        person.awaits("42000")
        person.resizes(40, 120)
        person.awaits("lines=40")
        person.types("\x03")
        person.awaits("KeyboardInterrupt")
        person.types("exit 7\n")
        person.awaits("exit")
        wait_for(lambda: person.modes & COOKED == COOKED)
        assert person.ends() == 7
    assert {each.status() for each in shell_jobs()} == {JobStatus.SUCCEEDED}


def test_a_script_has_pipes_and_the_exit_code(project: Path) -> None:
    content = os.urandom(1 << 20).hex()
    done = run("-a", "cpu", "--", "sh", "-c", "cat; echo told >&2; test -t 1 || exit 3", text=content)
    assert done.stdout == content
    assert (done.returncode, done.stderr.splitlines()[-1]) == (3, "told"), done.stderr


def test_shells_share_a_warm_pod(project: Path) -> None:
    words = ["-a", "cpu", "-o", "warm=1m", "--", "sh", "-c", "cat neighbour.py; echo $KINETIC_ON_WORKER"]
    told = [run(*words).stdout.split("\n") for _ in range(2)]
    assert told[0] == told[1]
    assert told[0][0] == "ANSWER = 42"
    cancel_worker(told[0][1])


def cancel_worker(job_id: str) -> None:
    worker = kinetic_core.attach(job_id)
    assert worker.func_name == "warm worker"
    worker.cancel()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_pod_ends_with_a_terminal_that_is_killed(project: Path, number: signal.Signals) -> None:
    with Person(KINETIC, "shell", "-a", "cpu") as person:
        person.awaits("workspace")
        person.types("echo $$-is-the-shell; exec sleep 600\n")
        person.awaits("-is-the-shell\r\n")
        found = re.search(r"(\d+)-is-the-shell\r\n", person.seen)
        assert found
        os.kill(person.pid, number)
        assert person.ends() == (-9 if number is signal.SIGKILL else 128 + number)
        if number is not signal.SIGKILL:
            assert person.modes & COOKED == COOKED
    wait_for(lambda: not is_alive(int(found[1])))
    wait_for(lambda: all(each.status().is_terminal for each in shell_jobs()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_told_to_end_while_waiting_leaves_no_job(
    project: Path, no_slot_is_free: Callable[[], None], number: signal.Signals
) -> None:
    before = {each.job_id for each in shell_jobs()}
    waiting = subprocess.Popen([KINETIC, "shell", "-a", "cpu"], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: {each.job_id for each in shell_jobs()} - before)
    (job,) = [each for each in shell_jobs() if each.job_id not in before]
    assert waiting.stderr is not None
    for line in waiting.stderr:
        if "waiting" in line:
            break
    waiting.send_signal(number)
    waiting.communicate(timeout=60)
    assert waiting.returncode == 128 + number
    assert job.status() is JobStatus.CANCELLED


def test_a_running_job_has_a_shell_as_its_function_is(job: kinetic_core.JobHandle) -> None:
    done = run(job.job_id, text="pwd; echo $PROBE_OF_SHELLS $KINETIC_JOB_ID; exit 9")
    assert done.returncode == 9, done.stderr
    folder, told = done.stdout.splitlines()
    assert folder.endswith("/workspace")
    assert told == f"captured {job.job_id}"
    assert job.status() is JobStatus.RUNNING


@pytest.mark.attack
def test_the_key_of_outcomes_is_not_in_a_shell(job: kinetic_core.JobHandle) -> None:
    assert "OUTCOME_KEY" not in run(job.job_id, "--", "env").stdout


@pytest.mark.attack
def test_a_shell_is_not_where_a_planted_handle_leads(job: kinetic_core.JobHandle) -> None:
    """A writer of the store can name his own job there as the worker of one that waits."""
    whole_machine = kinetic_core.run(accelerator=f"cpu:{core_count()}")(sleeps.__wrapped__)
    waiting = whole_machine.run_async()
    store, name = waiting.place.store, object_names.handle(waiting.job_id)
    told = json.loads(store.read(name))

    def plant(worker: str) -> None:
        store.delete(name)
        store.create_if_absent(name, json.dumps({**told, "worker": worker}).encode())

    plant(job.job_id)
    done = run(waiting.job_id, "--", "pwd")
    assert (done.returncode, done.stdout) == (2, "")
    assert "does not run yet" in done.stderr
    plant("job-1,app notin (y)")
    assert "names worker 'job-1,app notin (y)'; not used" in run(waiting.job_id, "--", "pwd").stderr
    plant("")
    waiting.cancel()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a job that runs"),
        (["job-0123456789abcdef", "-o", "memory=1Gi"], "--option is for a pod that is started"),
        (["-a", "cpu", "-o", "memory"], "--option memory: write NAME=VALUE"),
        (["-a", "cpu", "-o", "memroy=1Gi"], "memroy"),
        (["-a", "cpu", "-o", "debug=True"], "a shell waits for no debugger"),
        (["-a", "tpu-v5p-8"], "several hosts"),
        (["-a", "cpu", "--json"], "--json: a shell has the output for itself"),
        (["job-0123456789abcdef"], "no job job-0123456789abcdef"),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(kinetic: Kinetic, words: list[str], told: str) -> None:
    before = len(kinetic_core.list_jobs())
    done = kinetic("shell", *words)
    assert done.code == 2
    assert told in done.err + done.out
    assert len(kinetic_core.list_jobs()) == before


def test_a_host_that_the_job_has_not_is_refused(kinetic: Kinetic, job: kinetic_core.JobHandle) -> None:
    done = kinetic("shell", job.job_id, "--host", "1")
    assert (done.code, done.err) == (2, f"error: {job.job_id} has hosts 0 to 0, not 1\n")


def test_a_job_waits_for_its_shell_no_longer_than_it_should() -> None:
    begun = time.monotonic()
    kinetic_core.run(accelerator="cpu")(shell_function())(0.5)
    assert time.monotonic() - begun < 30
