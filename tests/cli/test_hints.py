"""What gives a job that waits for a node one is said wherever somebody waits, and asked for once."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.cli.output import Output
from kinetic_core.cli.screen import View, render
from kinetic_core.cli.watch import Watched, follow
from kinetic_core.errors import JobCancelled
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.terminal import Progress
from tests.conftest import wait_for
from tests.jobs.choices import Place

HINT = 'hint: accelerator="gpu-l4-1:spot": all nodes with gpu-l4-1 are Spot machines\n'


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[JobHandle]:
    """A job for an accelerator that the cluster has on Spot machines only."""
    where = Place(tmp_path)

    class Here(JobHandle):
        @property
        def place(self) -> Any:
            return where.backend

    spot = parse_accelerator("gpu-l4-1:spot")
    labels, room = spot.node_selector(), {"nvidia.com/gpu": "1"}
    taints = [{"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"}]
    where.fake.objects.create(
        "Node",
        "",
        {
            "metadata": {"name": "spot", "labels": labels},
            "spec": {"taints": taints},
            "status": {"allocatable": room},
        },
    )
    reference = where.submit(["gpu-l4-1"])
    where.waits(reference)
    yield Here.of(reference)
    where.fake.close()


def waits(handle: JobHandle, stream: io.StringIO) -> None:
    with Progress(stream) as progress, pytest.raises(JobCancelled):
        handle.shown_result(progress, stream_logs=False)


def watches(handle: JobHandle, stream: io.StringIO) -> None:
    with Watched([handle]) as watched:
        follow(Output(stream=stream), watched)


@pytest.mark.parametrize("look", [waits, watches])
def test_who_waits_is_told_once_what_gives_a_node(look: Any, handle: JobHandle) -> None:
    stream = io.StringIO()
    looking = threading.Thread(target=look, args=(handle, stream))
    looking.start()
    wait_for(lambda: HINT in stream.getvalue())
    handle.cancel()
    looking.join(30)
    assert stream.getvalue().count("hint: ") == 1


def test_the_live_view_has_it_where_the_log_will_be(handle: JobHandle) -> None:
    with Watched([handle]) as watched:
        view = View(watched, io.StringIO())

        def shown() -> str:
            console = Console(file=io.StringIO(), width=50)
            with console.capture() as captured:
                console.print(render(view, 50, 12))
            return captured.get()

        wait_for(lambda: "hint: " in shown())
        assert HINT.replace("with gpu", "with\ngpu") in shown(), "broken between words"
