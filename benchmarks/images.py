"""What images cost: builds when many clients want one at once, requests when it is there already.

Needs the environment of ../shared/cluster/testcluster, whose stand-ins for Google's services count.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

from measuring import Verdict, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cluster.images import GOOGLE, ZONE, Images, own_images

_THREADS, _PROCESSES = 8, 4
_PROGRAM = """
import sys, threading
from pathlib import Path
from kinetic_core.images.bundled import Workshop, bundled_image
from kinetic_core.images.dockerfile import Recipe
from kinetic_core.images.requirements import parse_requirements
from kinetic_core.images.frameworks import choose

cluster, zone, requirement, threads = sys.argv[1:]
recipe = Recipe("cpu", choose(parse_requirements([requirement], "requirements", Path()), "cpu"))
connections = default_connections().with_arguments(project="test-project", zone=zone, cluster=cluster)
workshop = Workshop.of_cluster(connections)
print("ready", flush=True)
sys.stdin.readline()
found = []
clients = [
    threading.Thread(target=lambda: found.append(bundled_image(recipe, workshop, print, connections)))
    for _ in range(int(threads))
]
for client in clients:
    client.start()
for client in clients:
    client.join()
print(*found)
"""


def clients(images: Images, requirement: str, threads: list[int]) -> list[str]:
    """What each client of each process got; all processes are ready before the first one asks."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, images.cluster, ZONE, requirement, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for count in threads
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers: list[str] = []

    def finish(process: subprocess.Popen[str]) -> None:
        answers.extend(process.communicate("\n")[0].split())

    waiting = [threading.Thread(target=finish, args=(process,)) for process in processes]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    return answers


def measure() -> list[Verdict]:
    os.environ.update(GOOGLE)
    requirement = f"six!=0.{secrets.randbelow(10**6)}"
    with own_images() as images:
        found = clients(images, requirement, [_THREADS, *[1] * _PROCESSES])
        assert len(found) == _THREADS + _PROCESSES
        assert len(set(found)) == 1, found
        (builds,) = images.builds.values()
        before = images.requests
        again = clients(images, requirement, [1])
        assert again == found[:1]
        warm = images.requests - before
    return [
        Verdict(f"cold image, {_THREADS} threads and {_PROCESSES} processes: builds", builds, 1, ""),
        Verdict("warm image: requests it adds to a submit of a new process", warm, 2, ""),
    ]


if __name__ == "__main__":
    if "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBUILD" not in GOOGLE:
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    sys.exit(report(measure()))
