"""Lists of what there is: large stores with broken handles, narrow terminals, locales without letters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core._runner import object_names
from kinetic_core.backends.base import open_backend
from kinetic_core.cli.jobs import shown_seconds
from kinetic_core.connections import default_connections
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.listing import index_metadata
from tests.conftest import Kinetic

KINETIC = str(Path(sys.executable).with_name("kinetic"))
PLAIN = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
"""An environment in which Python writes ASCII."""
WIDTH = 40


def handle(number: int, store_uri: str) -> JobHandle:
    return JobHandle(
        job_id=f"job-{number:016x}",
        backend="local",
        project="",
        cluster_name="",
        zone="",
        namespace="default",
        bucket_name="",
        k8s_name="",
        image_uri="",
        accelerator="cpu",
        func_name=f"f{number}",
        display_name="",
        created_at=f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}Z",
        store_uri=store_uri,
    )


@pytest.mark.promise("command: A store with 1,000 jobs and 50 broken handles", "`jobs list`")
def test_a_thousand_jobs_and_fifty_broken_handles(kinetic: Kinetic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    store = open_backend("local", default_connections()).store
    for number in range(1000):
        one, broken = handle(number, store.uri), number % 20 == 0
        content = [b"{broken", b"[]", b"\xff"][number % 3] if broken else json.dumps(one.to_dict()).encode()
        store.create_if_absent(object_names.handle(one.job_id), content)
        store.create_if_absent(index_object(one), b"", None if broken else index_metadata(one))
    told = kinetic("jobs", "list", "--json")
    jobs = told.json["jobs"]
    assert (told.code, told.err) == (0, "")
    assert [job["job_id"] for job in jobs] == [f"job-{number:016x}" for number in reversed(range(1000))]
    assert [job["func_name"] for job in jobs if not job["problem"]] == [
        f"f{number}" for number in reversed(range(1000)) if number % 20
    ]
    problems = {job["job_id"]: job["problem"] for job in jobs if job["problem"]}
    assert len(problems) == 50
    assert all(f"the handle of {job_id}" in problem for job_id, problem in problems.items())
    lines = {line.split()[0]: line for line in kinetic("jobs", "list").out.splitlines()}
    assert {job_id for job_id, line in lines.items() if "is unreadable" in line} == problems.keys()
    assert all(lines[job_id].split()[1] == "?" for job_id in problems)


def test_a_list_is_filtered(kinetic: Kinetic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    store = open_backend("local", default_connections()).store
    for number in range(12):
        one = handle(number, store.uri)
        facts = index_metadata(one, user="ada" if number % 2 else "bob")
        store.create_if_absent(index_object(one), b"", facts)

    def listed(*words: str) -> list[int]:
        jobs = kinetic("jobs", "list", *words, "--json").json["jobs"]
        return [int(job["job_id"].removeprefix("job-"), 16) for job in jobs]

    assert listed("--function", "f1*") == [11, 10, 1]
    assert listed("--user", "ada", "--limit", "2") == [11, 9]
    assert listed("--status", "running", "--status", "failed") == []
    refused = kinetic("jobs", "list", "--status", "lost")
    assert refused.code == 2
    assert "pending, running, succeeded, failed, cancelled" in refused.err


@pytest.mark.parametrize(
    ("took", "shown"), [(0.44, "0.4s"), (9.94, "9.9s"), (10.4, "10s"), (75.0, "75s"), (200.0, "3m")]
)
def test_short_jobs_took_tenths_of_seconds(took: float, shown: str) -> None:
    assert shown_seconds(took, 1) == shown


PROJECT = """\
import sys
import kinetic_core

@kinetic_core.run(accelerator="cpu", capture_env_vars=[])
def größe_der_größten_datei(x):
    import os, pathlib
    pathlib.Path(os.environ["KINETIC_OUTPUT_DIR"], "größe-" + 40 * "x").write_text("ü")
    return x * "größe"

if __name__ == "__main__":
    done = größe_der_größten_datei.run_async(9)
    done.result()
    batch = größe_der_größten_datei.run_async_map([1, 30], name="größe")
    batch.wait()
    print(done.job_id, batch.group_id)
"""


@dataclass(frozen=True)
class Listed:
    """A store with a job and a batch, named by letters that ASCII has not."""

    environment: dict[str, str]
    job_id: str
    group_id: str

    def words(self, text: str) -> list[str]:
        return [
            {"JOB": self.job_id, "BATCH": self.group_id}.get(word, word.replace("FILE", self._file))
            for word in text.split()
        ]

    @property
    def _file(self) -> str:
        return str(Path(self.environment["KINETIC_PACKAGE_ROOT"], "listed.py"))


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Listed:
    folder = tmp_path_factory.mktemp("listed")
    file = folder / "project" / "listed.py"
    file.parent.mkdir()
    file.write_text(PROJECT)
    profile = {"backend": "local", "cluster": "c" * 50}
    (folder / "profiles.json").write_text(json.dumps({"profiles": {"team-of-the-lab": profile}}))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "LC_"))},
        "KINETIC_BACKEND": "local",
        "KINETIC_LOCAL_STORE": str(folder / "store"),
        "KINETIC_PACKAGE_ROOT": str(file.parent),
        "KINETIC_PROFILES_FILE": str(folder / "profiles.json"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    ran = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, check=True)
    return Listed(environment, *ran.stdout.split()[-2:])


LISTS = {
    "jobs list": "JOB",
    "jobs watch JOB": "JOB",
    "jobs outputs JOB": "BYTES",
    "jobs explain JOB": "",
    "cost JOB": "JOB",
    "batch list": "BATCH",
    "batch status BATCH": "INDEX",
    "batch results BATCH --no-cleanup": "INDEX",
    "package FILE:größe_der_größten_datei 1": "BYTES",
    "accelerators": "NAME",
    "profile list": "",
    "profile show team-of-the-lab": "FIELD",
    "config": "SETTING",
    "reap": "",
    "doctor": "",
}
"""Verbs that print lists, and the first word of the table's head."""


AFTER_TABLES = ("flag or argument", "-seconds", " is also ")
"""What is in the sentences that follow them, which the terminal folds."""


def complaints_in(errors: str) -> str:
    """What a verb wrote to stderr but for the progress of a batch."""
    return re.sub(r"kinetic: \d+/\d+ done.*\n", "", errors)


def on_a_terminal(words: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, what a terminal 40 columns wide gets, without its colours, and stderr."""
    reading, writing = os.openpty()
    with subprocess.Popen(
        [KINETIC, *words],
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "COLUMNS": str(WIDTH), "TERM": "xterm"},
    ) as process:
        os.close(writing)
        told = b""
        try:
            while piece := os.read(reading, 1 << 16):
                told += piece
        except OSError:  # Linux' way to say that nobody writes any more
            os.close(reading)
        _, complaints = process.communicate(timeout=60)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", told.decode())
    return process.returncode, shown, complaints_in(complaints)


@pytest.mark.promise("command: Terminal 40 columns wide", "(15 verbs; with a UTF-8 locale")
@pytest.mark.promise("command: Non-UTF-8 locale")
@pytest.mark.parametrize("locale", [pytest.param({}, marks=pytest.mark.slow), PLAIN], ids=["utf-8", "C"])
@pytest.mark.parametrize("verb", LISTS)
def test_forty_columns(verb: str, locale: dict[str, str], listed: Listed) -> None:
    code, told, complaints = on_a_terminal(listed.words(verb), {**listed.environment, **locale})
    assert (code, complaints) == (0, ""), told
    lines = [line.rstrip() for line in told.splitlines()]
    if head := LISTS[verb]:
        start = next(number for number, line in enumerate(lines) if line.split()[:1] == [head])
        rows = [line for line in lines[start:] if not any(words in line for words in AFTER_TABLES)]
        assert max(map(len, rows)) <= WIDTH, rows
    for wanted in {"jobs list": [listed.job_id], "batch list": [listed.group_id]}.get(verb, ()):
        assert any(line.startswith(wanted) for line in lines), lines
    if locale:
        assert told.isascii()


@pytest.mark.promise("command: Plain output when piped")
@pytest.mark.promise("command: No colour, no TTY")
@pytest.mark.slow
@pytest.mark.parametrize("verb", LISTS)
def test_a_pipe_without_the_letters(verb: str, listed: Listed) -> None:
    environment = {**listed.environment, **PLAIN}
    done = subprocess.run(
        [KINETIC, *listed.words(verb)], env=environment, capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, complaints_in(done.stderr.decode())) == (0, ""), done
    assert done.stdout.isascii()


@pytest.mark.usefixtures("local_jobs")
def test_jobs_of_one_second_are_listed_newest_first() -> None:
    wrapped = kinetic_core.run(accelerator="cpu", backend="local")(handle)
    made = [wrapped.run_async(each, "file:///nowhere") for each in range(4)]
    for each in made:
        each.cancel()
    assert [each.job_id for each in kinetic_core.list_jobs(backend="local", limit=4)] == [
        each.job_id for each in reversed(made)
    ]


@pytest.mark.usefixtures("local_jobs")
def test_the_inputs_of_a_batch_are_selected_by_status(kinetic: Kinetic) -> None:
    batch = kinetic_core.run(accelerator="cpu", backend="local")(abs).run_async_map([1, "x", 3])
    batch.wait()
    told = kinetic("batch", "status", batch.group_id, "--status", "failed").out
    assert [line.split()[0] for line in told.splitlines()[2:]] == ["1"]
    told = kinetic("batch", "status", batch.group_id, "--limit", "2").out
    assert [line.split()[:2] for line in told.splitlines()[2:]] == [
        ["1", "FAILED"],
        ["0", "SUCCEEDED"],
        ["and", "1"],
    ]
