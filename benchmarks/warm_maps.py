"""A map of short inputs on warm workers, with every value checked: on this machine, and on a cluster.

`python benchmarks/warm_maps.py [INPUTS]`; the cluster's part needs the environment of
../shared/cluster/testcluster, and is left out without it. The project is first that of the benchmarks, then
one of 1,000 small files: after each input, a lane makes sure that all are as they were.

Requests are counted by what is stored: each claim of a block, each block that is read and each segment of
outcomes is one of a lane, each segment one of the client. Besides, a lane asks every five seconds whether the
map was stopped, and the client, with three requests, how the lane is, and every two seconds for new segments.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import Verdict, report
from warm_calls import KUBECONFIG, on_the_cluster, on_this_machine

import kinetic_core
from kinetic_core._runner import object_names
from kinetic_core.backends.base import known_backend
from kinetic_core.connections import default_connections

_OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"accelerator": "cpu"},
    "cluster": {"accelerator": "cpu", "cpu": 0.5},
}
_FILES = 1000
Function = Callable[[int], int]


def trivial(number: int) -> int:
    return number + 1


@contextmanager
def large_project() -> Iterator[Function]:
    """Make a project of many small files, in directories of ten; yield the trivial function in it."""
    with tempfile.TemporaryDirectory(prefix="kinetic-bench-") as root:
        for number in range(_FILES - 1):
            path = Path(root, f"package_{number // 10}", f"module_{number}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"number = {number}\n")
        Path(root, "of_large_project.py").write_text("def trivial(number):\n    return number + 1\n")
        sys.path.insert(0, root)
        yield importlib.import_module("of_large_project").trivial
        sys.path.remove(root)


def measured(place: str, inputs: int, workers: int, a_second: float, other: Function) -> list[Verdict]:
    """Measure a map of this project, and one with the function of the large one."""
    found = mapped(place, trivial, inputs, workers, a_second)
    before, os.environ["KINETIC_PACKAGE_ROOT"] = os.environ["KINETIC_PACKAGE_ROOT"], sys.path[0]
    found += mapped(place, other, inputs, workers, a_second, f", {_FILES} files")
    os.environ["KINETIC_PACKAGE_ROOT"] = before
    return found


def mapped(
    place: str, called: Function, inputs: int, workers: int, a_second: float, project: str = ""
) -> list[Verdict]:
    """Measure a map, from the call to the last value, whose workers exist."""
    function = kinetic_core.run(**_OPTIONS[place], warm="2m")(called)
    function.run_async_map(range(workers), max_concurrent=workers).results(cleanup=False)
    began = time.perf_counter()
    batch = function.run_async_map(range(inputs), max_concurrent=workers)
    values = batch.results(cleanup=False)
    taken = time.perf_counter() - began
    assert values == [number + 1 for number in range(inputs)]
    store = known_backend(None, default_connections()).store
    names = [info.name for info in store.list(object_names.batch(batch.group_id, ""))]
    names += [info.name for info in store.list(f"jobs/{batch.group_id}-")]
    blocks = sum("/blocks/" in name for name in names)
    segments = sum("/outcomes/" in name for name in names)
    requests = len(names) + blocks + segments + (4 * workers / 5 + 1 / 2) * taken
    what = f"map of {inputs} inputs on {workers} warm workers, {place}{project}"
    return [
        Verdict(what, 1000 * taken / inputs, 1000 / a_second, "ms", f"{inputs / taken:.0f} inputs a second"),
        Verdict("the same: requests for an input", requests / inputs, 0.1, "", f"{segments} segments"),
    ]


def measure(inputs: int) -> list[Verdict]:
    with large_project() as other:
        with on_this_machine():
            found = measured("local", inputs, 4, 150, other)
        if KUBECONFIG:
            with on_the_cluster():
                found += measured("cluster", inputs, 2, 60, other)
    return found


if __name__ == "__main__":
    sys.exit(report(measure(int(sys.argv[1]) if sys.argv[1:] else 10_000)))
