"""Signals, refusals and a second process while `kinetic` makes and removes things through the stand-in."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

import pytest

from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.commands import KINETIC, well
from tests.cluster.images import GOOGLE
from tests.conftest import Kinetic

pytestmark = [pytest.mark.alone, pytest.mark.google]  # pods of others would come to its pools

READS = ("GET ", ":getIamPolicy", ":testIamPermissions")
RUNS = 60
"""More runs than there are steps."""


@dataclass(frozen=True)
class Wire:
    """What passes between `kinetic` and Google's services, and Cloud Storage."""

    google: FaultProxy
    store: FaultProxy

    @property
    def changes(self) -> list[str]:
        """The requests so far that change something."""
        every = [*self.google.faults.requests, *self.store.faults.requests]
        return [each.line for each in every if not any(word in each.line for word in READS)]


@pytest.fixture
def wire(place: dict[str, str], emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Every fault must happen."""
    del place
    base = GOOGLE["CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER"].rstrip("/")
    with FaultProxy(base) as google, FaultProxy(emulator) as store, monkeypatch.context() as patch:
        for name in GOOGLE:
            if name.startswith("CLOUDSDK_"):
                patch.setenv(name, f"{google.url}/")
        patch.setenv("STORAGE_EMULATOR_HOST", store.url)
        yield Wire(google, store)
        assert (google.faults.unmet, store.faults.unmet) == ((), ())


@pytest.mark.promise("command: Verbs that look create nothing (W64)")
@pytest.mark.promise("provisioning: A read-only verb creates nothing")
@pytest.mark.promise("provisioning: `--json` for each")
def test_looking_changes_nothing(place: dict[str, str], kinetic: Kinetic, wire: Wire) -> None:
    words: tuple[str, ...]
    for words in (("status",), ("up", "--plan"), ("down", "--plan")):
        well(kinetic(*words, "--json"))
    assert wire.changes == []
    well(kinetic("up", "--yes", "--json"))
    before = wire.changes
    assert before
    pool, other = "default-pool", f"{place['NAMESPACE']}-two"
    for words in (
        ("status",),
        ("init", "--profile-name", "joined"),
        ("pool", "list"),
        ("pool", "add", "-a", "gpu-l4", "--plan"),
        ("pool", "update", pool, "--max-nodes", "5", "--plan"),
        ("pool", "remove", pool, "--plan"),
        ("namespace", "add", other, "--plan"),
        ("namespace", "remove", place["NAMESPACE"], "--plan"),
        ("up", "-a", "gpu-l4", "--plan"),
        ("down", "--plan"),
    ):
        well(kinetic(*words, "--json"))
    assert wire.changes == before


@pytest.mark.promise("command: What fails says so and is not 0; no profile then (W65, W66)")
@pytest.mark.promise("provisioning: Profiles are saved only on success")
@pytest.mark.promise("provisioning: Exits non-zero, names what remains")
def test_every_verb_that_fails_says_what_is_not_done(
    place: dict[str, str], kinetic: Kinetic, wire: Wire
) -> None:
    other = f"{place['NAMESPACE']}-two"
    for proxy, line, words in (
        (wire.google, "POST .*/clusters$", ("up",)),
        (wire.google, "POST .*/nodePools$", ("pool", "add", "-a", "gpu-l4")),
        (wire.store, "PUT .*/iam$", ("namespace", "add", other)),
        (wire.google, "DELETE .*/repositories/", ("down",)),
    ):
        proxy.faults.answer(line, 403)
        failed = kinetic(*words, "--yes", "--json")
        assert (failed.code, failed.json["exit_code"]) == (3, 3), words
        assert "Not done: " in failed.json["message"]
        if words == ("up",):
            assert well(kinetic("profile", "list", "--json"))["profiles"] == []
        well(kinetic(*words, "--yes", "--json"))
    assert well(kinetic("status", "--json"))["status"] == ""


@pytest.mark.promise("command: … at prompts, in the live view, between steps of `up`")
@pytest.mark.promise("provisioning: `up` applies it with progress")
@pytest.mark.promise("provisioning: Killed anywhere and run again, it continues")
@pytest.mark.promise("provisioning: Ctrl-C at every step")
@pytest.mark.promise("provisioning: Kill -9 at every step")
def test_stopped_at_one_step_after_another(place: dict[str, str], kinetic: Kinetic) -> None:
    """By Ctrl-C and by kill -9 in turn, each run at its third step: every run gets two steps further."""
    del place
    left: list[int] = []
    for how in cycle((signal.SIGINT, signal.SIGKILL)):
        assert len(left) < RUNS
        code, steps, told = stopped(how)
        if code == 0:
            break
        assert (code, "interrupted at: " in told) in ((130, True), (-signal.SIGKILL, False)), told
        left.append(steps)
    assert len(left) > 5
    assert left == sorted(left, reverse=True)
    again = well(kinetic("up", "-a", "gpu-l4", "--yes", "--json"))
    assert {step["action"] for step in again["steps"] if step["kind"] != "add-on"} == {"keep"}


def stopped(how: signal.Signals) -> tuple[int, int, str]:
    """An `up` that gets a signal when it begins its third step: exit code, number of steps, what it said."""
    words = [KINETIC, "up", "-a", "gpu-l4", "--yes"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as running:
        assert running.stderr is not None
        said, steps = "", 0
        for line in running.stderr:
            said += line
            if line.startswith("[3/"):
                steps = int(line[3:].partition("]")[0])
                running.send_signal(how)
        return running.wait(), steps, said


@pytest.mark.promise("provisioning: Two `up` at once")
def test_two_at_once_make_everything_once(place: dict[str, str], kinetic: Kinetic, wire: Wire) -> None:
    words = [KINETIC, "up", "-a", "gpu-l4", "--yes"]
    both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [each.communicate()[1] for each in both]
    assert [each.returncode for each in both] == [0, 0], told
    again = well(kinetic("up", "-a", "gpu-l4", "--yes", "--json"))
    assert {step["action"] for step in again["steps"] if step["kind"] != "add-on"} == {"keep"}
    pools = [pool["name"] for pool in well(kinetic("pool", "list", "--json"))["pools"]]
    assert sorted(pools) == ["default-pool", "gpu-l4-1"]
    assert wire.google.faults.count(f"POST .*/{place['PROJECT']}/.*/clusters$") in (1, 2)
