"""What verbs print: help, schemas, tables, texts of users."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core._runner.log import printable
from kinetic_core.cli.functions import arguments
from kinetic_core.cli.outcomes import value_fields
from kinetic_core.cli.output import Output
from kinetic_core.cli.schemas import SCHEMAS, SHAPES, numbered
from tests.cli.all_verbs import all_verbs
from tests.cli.published import PUBLISHED, changes, described, misfits, texts_of_times, times_of
from tests.conftest import Kinetic, wait_for

on_cpu = kinetic_core.run(accelerator="cpu")


@on_cpu
def double(x: int) -> int:
    print(f"doubling {x}")
    return 2 * x


@pytest.mark.promise("command: `--json` on every verb, stable documented schema")
def test_every_schema_is_what_its_verb_prints(kinetic: Kinetic, sample: str, tmp_path: Path) -> None:
    done = double.run_async(1)
    batch = double.run_async_map([1])
    batch.wait()
    calls = {
        "error": ["jobs", "status", "nothing"],
        "run": ["run", f"{sample}:scaled", "1"],
        "jobs.list": ["jobs", "list"],
        "jobs.status": ["jobs", "status", done.job_id],
        "jobs.result": ["jobs", "result", done.job_id],
        "jobs.logs": ["jobs", "logs", done.job_id],
        "jobs.explain": ["jobs", "explain", done.job_id],
        "jobs.outputs": ["jobs", "outputs", done.job_id],
        "jobs.watch": ["jobs", "watch", done.job_id],
        "cost": ["cost", done.job_id],
        "jobs.cancel": ["jobs", "cancel", done.job_id],
        "jobs.cleanup": ["jobs", "cleanup", done.job_id],
        "batch.list": ["batch", "list"],
        "batch.status": ["batch", "status", batch.group_id],
        "batch.results": ["batch", "results", batch.group_id],
        "batch.cancel": ["batch", "cancel", batch.group_id],
        "package": ["package", f"{sample}:scaled", "1", "--dry-run"],
        "accelerators": ["accelerators", "l4"],
        "doctor": ["doctor"],
        "profile.create": ["profile", "create", "p", "--backend", "local"],
        "profile.list": ["profile", "list"],
        "profile.show": ["profile", "show", "p"],
        "profile.use": ["profile", "use", "p"],
        "profile.remove": ["profile", "remove", "p"],
        "config": ["config"],
        "home": ["home"],
        "reap": ["reap"],
        "warm.list": ["warm", "list"],
        "up.export": ["up", "--project", "my-project", "--export", "terraform", str(tmp_path)],
    }
    # What these print is checked where they can run: in tests/cluster (base images, provisioning).
    needs_a_cluster = {"build-image", "up", "down", "init", "status"}
    needs_a_cluster |= {f"namespace.{name}" for name in ("add", "list", "remove")}
    needs_a_cluster |= {f"pool.{name}" for name in ("add", "list", "remove", "update")}
    elsewhere = {"jobs.debug", "warm.start", "warm.stop"}  # test_debugging.py, test_warm_verbs.py
    assert calls.keys() | needs_a_cluster | elsewhere == SCHEMAS.keys()
    seen: set[str] = set()
    for schema, words in calls.items():
        told = kinetic(*words, "--json")
        assert told.json.keys() == {"schema", *SCHEMAS[schema]}, told
        assert told.json["schema"] == numbered(schema)
        assert misfits(told.json, PUBLISHED[numbered(schema)]) == []
        assert told.out.isascii()
        seen |= check_objects(schema, told.json)
    assert seen == SHAPES.keys() - {
        "step",
        "pool",
        "worker",
    }  # tests/provision/test_apply.py, test_warm_verbs.py


def check_objects(schema: str, told: dict[str, Any]) -> set[str]:
    """Compare the objects of each list with what is said of them; the names of shapes that were there."""
    seen: set[str] = set()
    for field, meaning in SCHEMAS[schema].items():
        objects = (
            [one for one in told[field] if isinstance(one, dict)] if isinstance(told[field], list) else []
        )
        found = re.match(r"list of (\w+)(?![\w ])", meaning)
        for one in objects:
            if found is not None:
                assert one.keys() == SHAPES[found[1]].keys(), (schema, field)
                seen.add(found[1])
            else:
                assert one.keys() <= set(re.findall(r"`(\w+)`", meaning)), (schema, field)
    return seen


def now() -> dict[str, set[str]]:
    return {numbered(name): set(described(fields, SHAPES)) for name, fields in SCHEMAS.items()}


@pytest.mark.promise("command: `--json` on every verb, stable documented schema")
def test_what_is_published_stays_under_its_number() -> None:
    assert changes(PUBLISHED, now()) == []


def test_every_time_is_a_number_of_unix_seconds() -> None:
    """By name, of every verb; what the verbs print is compared with it wherever they run (`misfits`)."""
    found = list(times_of(PUBLISHED))
    assert {"jobs.list/2", "jobs.status/1", "jobs.explain/1", "jobs.outputs/1", "batch.list/1"} <= {
        schema for schema, _, _ in found
    }
    assert [each for each in found if "number" not in each[2].split(" or ")] == []
    said = [(name, text) for fields in (*SCHEMAS.values(), *SHAPES.values()) for name, text in fields.items()]
    assert [name for name, text in said if name.endswith("_at") and "Unix seconds" not in text] == []
    assert not any("ISO" in text for _, text in said)
    odd = {"jobs": [{"created_at": "2026-11-21T18:00:00.000Z", "why": "since 2026-11-21T18:00:00Z"}]}
    assert list(texts_of_times(odd)) == [("jobs[].created_at", "2026-11-21T18:00:00.000Z")]


def test_a_change_needs_another_number() -> None:
    """Of a field, of one in a list, of a type, and of a whole schema."""
    fields = now()
    fields["jobs.list/2"] = fields["jobs.list/2"] - {"jobs[].job_id"} | {"jobs[].id"}
    del fields["reap/1"]
    assert changes(PUBLISHED, fields) == [
        "reap/1 is published and gone",
        "jobs.list/2 has lost jobs[].job_id: give it another number",
        "jobs.list/2 has got jobs[].id: write it into published.json",
    ]
    answer = {"jobs": [{"job_id": 7, "inputs": 0}]}
    assert misfits(answer, PUBLISHED["jobs.list/2"]) == ["jobs[].job_id is number, and published as string"]


@pytest.mark.promise("command: `--help` with examples")
@pytest.mark.parametrize("name", all_verbs())
def test_help_has_examples_for_every_verb(name: str, kinetic: Kinetic) -> None:
    done = kinetic(*name.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert f"  kinetic {name}" in done.out.partition("Examples:")[2]
    assert "--json" in done.out


@pytest.mark.promise("gke: Text is never markup")
@pytest.mark.promise("command: User text never interpreted as markup")
def test_text_of_users_is_no_markup_and_no_terminal_command() -> None:
    assert printable("a\x1b[2J[red]b\n") == "a\\x1b[2J[red]b\n"


@pytest.mark.promise("command: No colour, no TTY")
def test_a_table_fits_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    file = tmp_path / "screen"
    with file.open("w") as stream:
        output = Output(stream=_Terminal(stream))
        output.table(("JOB", "STATUS"), [("[red]" + 60 * "x", "RUNNING")])
        output.table(
            ("JOB", "CREATED", "STATUS"), [("job-0123456789abcdef", 30 * "x", "FAILED")], ["CREATED"]
        )
    text = file.read_text()
    assert text.splitlines()[-1].rstrip() == "job-0123456789abcdef  FAILED"
    assert max(len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in text.splitlines()) <= 40
    assert "[red]xx" in text
    assert "\x1b[3" not in text


class _Terminal:
    """A stream that says it is one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def test_json_of_a_value_that_json_has_not(kinetic: Kinetic, local_jobs: Path) -> None:
    handle = on_cpu(lambda: {1, 2}).run_async()
    told = kinetic("jobs", "result", handle.job_id, "--json").json
    assert (told["result"], told["repr"], told["type"]) == (None, "{1, 2}", "set")
    json.dumps(told)
    wait_for(lambda: handle.status().is_terminal)


class Silent:
    """A class with a mistake in its `repr`."""

    def __repr__(self) -> str:
        raise KeyError("name")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10**5000, "<int, whose repr raises ValueError>"),
        ([Silent()], "<list, whose repr raises KeyError>"),
    ],
    ids=["huge", "mistaken"],
)
def test_a_value_that_cannot_be_shown_is_told(value: object, shown: str) -> None:
    assert value_fields(value)["repr"] == shown


@pytest.mark.parametrize("word", ["{{1}}", "{[1]: 2}", "(" * 10_000], ids=["set", "key", "deep"])
def test_what_is_no_literal_is_a_text(word: str) -> None:
    assert arguments([word, f"x={word}"]) == ([word], {"x": word})
