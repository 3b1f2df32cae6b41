"""A map of short inputs on warm workers, with every value checked: on this machine, and on a cluster.

`python benchmarks/warm_maps.py [INPUTS]`; the cluster's part needs the environment of
../shared/cluster/testcluster, and is left out without it.

Requests are counted by what is stored: each claim of a block, each block that is read and each segment of
outcomes is one of a lane, each segment one of the client. Besides, a lane asks every five seconds whether the
map was stopped, and the client, with three requests, how the lane is, and every two seconds for new segments.
"""

from __future__ import annotations

import sys
import time

from measuring import Verdict, report
from warm_calls import KUBECONFIG, on_the_cluster, on_this_machine

import kinetic_core
from kinetic_core._runner import object_names
from kinetic_core.backends.base import known_backend
from kinetic_core.connections import default_connections

_OPTIONS = {"local": {"accelerator": "cpu"}, "cluster": {"accelerator": "cpu", "cpu": 0.5}}


def trivial(number: int) -> int:
    return number + 1


def mapped(place: str, inputs: int, workers: int, a_second: float) -> list[Verdict]:
    """Measure a map, from the call to the last value, whose workers exist."""
    function = kinetic_core.run(**_OPTIONS[place], warm="2m")(trivial)
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
    what = f"map of {inputs} inputs on {workers} warm workers, {place}"
    return [
        Verdict(what, 1000 * taken / inputs, 1000 / a_second, "ms", f"{inputs / taken:.0f} inputs a second"),
        Verdict("the same: requests for an input", requests / inputs, 0.1, "", f"{segments} segments"),
    ]


def measure(inputs: int) -> list[Verdict]:
    with on_this_machine():
        found = mapped("local", inputs, 4, 150)
    if KUBECONFIG:
        with on_the_cluster():
            found += mapped("cluster", inputs, 2, 60)
    return found


if __name__ == "__main__":
    sys.exit(report(measure(int(sys.argv[1]) if sys.argv[1:] else 10_000)))
