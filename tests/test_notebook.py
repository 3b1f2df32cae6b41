"""What notebooks show of jobs, batches, explanations and usage."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import kinetic_core
from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.batches.progress import Board
from kinetic_core.errors import InvalidRequest
from kinetic_core.job import JobObservation, JobReference, JobStatus
from kinetic_core.jobs.cost import Usage
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.phases import Phase
from kinetic_core.jobs.timeline import Explanation
from kinetic_core.notebook import batch_html, explanation_html, job_html, usage_html

HOSTILE = "<script>alert('&')</script>"
JOB = JobReference(
    job_id="job-0000000000000001",
    backend="local",
    project="",
    cluster_name="",
    zone="",
    namespace="default",
    bucket_name="",
    k8s_name="",
    image_uri="",
    accelerator="cpu",
    func_name=HOSTILE,
    display_name="",
    created_at="2026-01-01T00:00:00Z",
    store_uri="file:///nowhere",
)


def words(html: str) -> str:
    """The text of well-formed HTML, in which nothing of a user's is a tag."""
    tree = ElementTree.fromstring(html.replace("<br>", "<br/>"))
    assert tree.find(".//script") is None
    return " ".join("".join(tree.itertext()).split())


@pytest.mark.attack
def test_a_job_says_how_it_is_or_why_nobody_knows() -> None:
    seen = JobObservation(JobStatus.PENDING, "Unschedulable", HOSTILE)
    told = words(job_html(JOB, seen))
    assert told.startswith(f"job-0000000000000001 PENDING Unschedulable: {HOSTILE}function{HOSTILE}")
    assert "the cluster is silent" in words(job_html(JOB, None, "the cluster is silent"))


def test_a_handle_shows_itself(local_jobs: None) -> None:
    handle = kinetic_core.run(accelerator="cpu", backend="local")(abs).run_async(-1)
    handle.result(cleanup=False)
    assert "SUCCEEDED" in words(handle._repr_html_())
    assert words(handle.explain()._repr_html_()).startswith(f"{handle.job_id} SUCCEEDED")
    lost = JobHandle.of(JOB)
    assert "job-0000000000000001" in words(lost._repr_html_())


@pytest.mark.attack
def test_bars_are_as_long_as_their_share() -> None:
    seen = JobObservation(JobStatus.SUCCEEDED, "Completed", HOSTILE)
    phases = (Phase("queue", 0, 0.0, 30.0), Phase("function", 1, 30.0, 10.0))
    html = explanation_html(Explanation("job-1", seen, phases))
    assert re.findall(r"width:(\d+)px", html) == ["180", "60"]
    assert "function (attempt 2)10.0 syour own code" in words(html)


def test_usage_is_summed() -> None:
    seconds = {"waiting": 5.0, "pulling": 1.0, "installing": 0.0, "running": 2.0, "idle": 0.0}
    told = words(usage_html(Usage("job-1", parse_accelerator("tpu-v5e-4"), 4, seconds)))
    assert told.startswith("job-1 tpu-v5e-4: 12.0 chip-seconds")
    paid = Usage("job-1", parse_accelerator("tpu-v5e-4"), 4, seconds, 0.0125, "EUR")
    assert words(usage_html(paid)).startswith("job-1 tpu-v5e-4: 12.0 chip-seconds, 0.0125 EUR")
    on_cores = words(usage_html(Usage("job-2", parse_accelerator("cpu:2"), 2, seconds)))
    assert on_cores.startswith("job-2 cpu:2: 6.0 core-seconds")


@pytest.mark.attack
def test_a_board_has_a_square_for_each_input() -> None:
    states = ["succeeded"] * 9_990 + ["failed"] * 9 + ["not submitted"]
    html = batch_html("grp-1", HOSTILE, states)
    assert words(html).startswith(
        f"grp-1 ({HOSTILE}) 10000 inputs: 1 not submitted, 9990 succeeded, 9 failed"
    )
    assert html.count("h6v6h-6z") == 10_000
    assert len(html) < 250_000
    assert "<svg" not in batch_html("grp-1", None, [*states, "failed"])


def test_each_input_has_the_word_of_its_end() -> None:
    board = Board(6)
    board.jobs[:3] = [JobHandle.of(JOB)] * 3
    board.ended[1] = JobObservation(JobStatus.CANCELLED, "Cancelled", "")
    board.submission_failures[3] = InvalidRequest("no")
    board.dropped.add(4)
    board.unavailable[2] = "job-2"
    assert board.states() == ["submitted", "cancelled", "not_found", "failed", "cancelled", "not submitted"]


@dataclass
class Cell:
    """A stand-in for IPython in a notebook: what a cell shows, each in place of the last."""

    kernel: object
    shown: list[str] = field(default_factory=list)
    places: int = 0

    def display(self, shown: Any, *, display_id: bool) -> Cell:
        assert display_id
        self.places += 1
        self.update(shown)
        return self

    def update(self, shown: Any) -> None:
        self.shown.append(words(shown._repr_html_()))


@pytest.mark.parametrize("kernel", [object(), None])
def test_a_batch_is_drawn_anew_while_it_is_awaited(
    kernel: object, local_jobs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(kernel)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: cell))
    monkeypatch.setitem(sys.modules, "IPython.display", cell)
    batch = kinetic_core.run(accelerator="cpu", backend="local")(abs).run_async_map([-1, -2])
    assert batch.results(cleanup=False) == [1, 2]
    assert cell.places == (1 if kernel else 0)
    if kernel:
        assert "2 inputs: 2 succeeded" not in cell.shown[0]
        assert cell.shown[-1] == f"{batch.group_id} 2 inputs: 2 succeededsucceeded"


def test_the_board_of_an_attached_batch_is_true_at_once(local_jobs: None) -> None:
    batch = kinetic_core.run(accelerator="cpu", backend="local")(abs).run_async_map(range(20))
    batch.results(cleanup=False)
    again = kinetic_core.attach_batch(batch.group_id)
    assert words(again._repr_html_()) == f"{batch.group_id} 20 inputs: 20 succeededsucceeded"


def test_a_job_with_a_price_says_what_it_cost(
    local_jobs: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "prices.toml"
    table.write_text('currency = "EUR"\n[on_demand]\ncpu = 3600.0\n')
    handle = kinetic_core.run(accelerator="cpu", backend="local")(abs).run_async(-1)
    handle.result(cleanup=False)
    assert handle.usage().cost is None
    monkeypatch.setenv("KINETIC_PRICES", str(table))
    usage = kinetic_core.attach(handle.job_id).usage()
    assert usage.cost == pytest.approx(usage.held)
    assert f"core-seconds, {usage.held:.4f} EUR" in words(usage._repr_html_())
