"""The command as a process of its own: pipes, signals, locales, terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic_core
from tests.cli.conftest import waits
from tests.conftest import wait_for
from tests.person import KINETIC, Person

INTERRUPTED_IMPORT = """\
import os, signal, sys
from kinetic_core.cli.main import main

class Interrupts:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupts())
main()
"""
"""The command, which gets SIGINT when it imports the module that is named first."""
LEFT_BEHIND = """\
import sys, threading, time
from typing import Annotated
from pydantic import BeforeValidator, TypeAdapter
from kinetic_core.cli.main import main

def waits(value):
    while True:
        time.sleep(0.00001)

in_rust = TypeAdapter(Annotated[int, BeforeValidator(waits)])
for _ in range(4):
    threading.Thread(target=in_rust.validate_python, args=(1,), daemon=True).start()
main()
"""
"""The command, beside threads that run Python code below a library in Rust when it ends."""
SAMPLE = str(Path(__file__).parent / "project" / "cli_sample.py")


@kinetic_core.run(accelerator="cpu")
def counts() -> None:
    import time

    for number in range(1200):
        print(f"line {number}", flush=True)
        time.sleep(0.1)


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [KINETIC, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.promise("command: Closed pipe", "18 calls")
@pytest.mark.parametrize(
    "words",
    [
        ["accelerators"],
        ["accelerators", "--json"],
        ["jobs", "list"],
        ["jobs", "list", "--json"],
        ["jobs", "status", "no id", "--json"],  # an error, which nobody reads either
        ["jobs", "explain", "JOB"],
        ["jobs", "logs", "JOB"],
        ["jobs", "logs", "JOB", "-n", "20"],
        ["jobs", "logs", "JOB", "-f"],
        ["jobs", "watch", "JOB"],
        ["cost", "JOB"],
        ["doctor"],
        ["batch", "list"],
        ["config"],
        ["package", "SAMPLE:scaled", "1", "--dry-run"],
        ["profile", "list"],
        ["profile", "create", "some", "--backend", "local"],
        ["reap"],
    ],
    ids=" ".join,
)
def test_a_closed_pipe_ends_it_quietly(words: list[str], running: kinetic_core.JobHandle) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    called = [KINETIC, *(word.replace("JOB", running.job_id).replace("SAMPLE", SAMPLE) for word in words)]
    done = subprocess.run(called, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.promise("command: Closed pipe")
def test_head_ends_a_log_that_is_followed(local_jobs: Path) -> None:
    handle = counts.run_async()
    following = start("jobs", "logs", handle.job_id, "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "line 0\n"
    following.stdout.close()
    assert following.stderr is not None
    assert (following.wait(60), following.stderr.read()) == (141, "")
    following.stderr.close()
    assert handle.status() is kinetic_core.JobStatus.RUNNING
    handle.cancel()


def test_threads_that_still_ask_do_not_abort_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND, "accelerators"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "tpu-v6e-8" in done.stdout


PROJECT = """\
import kinetic_core

class Box:
    def __repr__(self):
        return "a box"

@kinetic_core.run(accelerator="cpu")
def box(number=0):
    return Box()
"""


def test_values_of_the_projects_classes_are_collected(local_jobs: Path, tmp_path: Path) -> None:
    """The command is no script, whose directory Python would import from."""
    (tmp_path / "boxes.py").write_text(PROJECT)
    submit = "import boxes; print(boxes.box.run_async().job_id, boxes.box.run_async_map([1, 2]).group_id)"
    here = {"cwd": tmp_path, "text": True, "check": True, "stdout": subprocess.PIPE}
    environment = {**os.environ, "KINETIC_PACKAGE_ROOT": str(tmp_path)}
    made = subprocess.run([sys.executable, "-c", submit], env=environment, **here)
    job_id, group_id = made.stdout.split()
    one = subprocess.run([KINETIC, "jobs", "result", job_id], **here)
    assert one.stdout == "a box\n"
    several = subprocess.run([KINETIC, "batch", "results", group_id], **here)
    assert several.stdout.count("a box") == 2


@pytest.mark.promise("command: Ctrl-C during every verb")
def test_ctrl_c_stops_the_verb_and_not_the_job(running: kinetic_core.JobHandle) -> None:
    batch = waits.run_async_map([120])
    verbs = (["jobs", "result"], ["jobs", "logs", "-f"], ["jobs", "watch"])
    calls = [[*words, running.job_id] for words in verbs] + [["batch", "results", batch.group_id]]
    for process in [start(*words) for words in calls]:
        threads = Path(f"/proc/{process.pid}/task")
        wait_for(lambda threads=threads: len(list(threads.iterdir())) > 1)  # it waits for the job
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=90)
        *before, last = told.splitlines()
        assert (process.returncode, last) == (130, "interrupted")
        allowed = (
            f"{batch.group_id} goes on without this process",
            f"hint: kinetic batch cancel {batch.group_id}",
            "kinetic: 0/1 done",
            "kinetic: running: ",
        )
        assert all(any(text in line for text in allowed) for line in before), before
    assert running.status() is kinetic_core.JobStatus.RUNNING
    assert not any(status.is_terminal for _, status in batch.statuses())
    batch.cancel()


@pytest.mark.promise("command: Ctrl-C during every verb")
def test_ctrl_c_takes_the_debuggers_way_and_not_the_job(local_jobs: Path) -> None:
    handle = kinetic_core.run(accelerator="cpu", debug=True)(lambda: None).run_async()
    process = start("jobs", "debug", handle.job_id, "--port", "0")
    assert process.stderr is not None
    assert any('"port"' in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=90)
    assert (process.returncode, told.endswith("interrupted\n")) == (130, True)
    assert "Traceback" not in told
    assert not handle.status().is_terminal
    handle.cancel()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize(
    "words", [["accelerators"], ["accelerators", "--json"], ["jobs", "status", "no id", "--json"]]
)
def test_a_full_disk_is_told(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([KINETIC, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = "error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (74, told)


@pytest.mark.promise("command: Ctrl-C during every verb")
@pytest.mark.parametrize("module", ["typer", "kinetic_core.cli.root", "kinetic_core.cli.config"])
def test_ctrl_c_while_it_starts(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, "config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_in_run_says_how_to_stop_the_job(local_jobs: Path) -> None:
    process = start("run", f"{SAMPLE}:waiting", "120")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=90)
    found = re.search(r"kinetic: hint: kinetic jobs cancel (job-\w+)( --backend local)?\n", told)
    assert (process.returncode, found is not None) == (130, True), told
    assert found
    kinetic_core.attach(found[1]).cancel()


@pytest.mark.promise("command: Non-UTF-8 locale")
def test_a_locale_without_the_letters(running: kinetic_core.JobHandle) -> None:
    plain = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    process = start("jobs", "logs", running.job_id, "-n", "1", **plain)
    told, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert told == "line 49 [bold]x[/bold] \x1b[2J \\xfc\n"


def test_without_its_packages_it_says_which_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from kinetic_core.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install typer rich" in done.stderr


@pytest.mark.promise("command: Shell completion")
def test_a_shell_completes_ids_and_names(running: kinetic_core.JobHandle, tmp_path: Path) -> None:
    (tmp_path / "profiles.json").write_text('{"profiles": {"team": {"backend": "local"}}}')
    batch = waits.run_async_map([0])
    for words, wanted in (
        ("jobs status ", running.job_id),
        ("profile use ", "team"),
        ("run train.py --accelerator tpu-v5e-", "tpu-v5e-4"),
        ("pool add -a gpu-l4", "gpu-l4-4"),
        ("pool add -a nv", "nvidia-l4-4"),
        ("batch status grp", batch.group_id),
        ("cost --batch grp", batch.group_id),
        ("cost job", running.job_id),
        ("jobs list --status fa", "failed"),
        ("jobs list --backend lo", "local"),
    ):
        asked = {"_KINETIC_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"kinetic {words}"}
        told, _ = start(**asked).communicate(timeout=90)
        assert wanted in told


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("jbos list", "'jobs'"),
        ("rnu status", "'run'"),  # a verb too
        ("--profile status rnu x.py", "'run'"),
        ("jobs lst", "'list'"),
        ("jobs list --stauts failed", "--status"),
        ("pool add --acc gpu-l4-1", "--accelerator"),
        ("run x.py --acc cpu", "Possible options: --accelerator)"),
        ("--v", "Possible options: --version)"),
    ],
)
def test_a_misspelt_word_has_a_suggestion(words: str, meant: str) -> None:
    process = start(*words.split())
    out, told = process.communicate(timeout=90)
    assert (process.returncode, out) == (2, "")
    assert meant in told.splitlines()[-1]


def test_a_terminal_has_colours_and_a_pipe_none(own_jobs: None) -> None:
    batch = waits.run_async_map([0])
    batch.wait()
    words = "batch", "status", batch.group_id
    with Person(KINETIC, *words) as person:
        assert person.ends() == 0
    assert "\x1b[32mSUCCEEDED" in person.seen
    told, _ = start(*words).communicate(timeout=90)
    assert "SUCCEEDED" in told
    assert "\x1b" not in told


@pytest.mark.promise("command: CLI start ≤ 0.3 s for verbs that touch no cloud")
def test_verbs_that_touch_no_cloud_import_none() -> None:
    code = (
        "import sys; from kinetic_core.cli.main import build; build()\n"
        "print([name for name in ('google', 'kubernetes', 'cloudpickle', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
