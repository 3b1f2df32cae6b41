"""Scripts that start batches, to be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from tests.conftest import wait_for


@contextmanager
def run_script(tmp_path: Path, body: str) -> Iterator[subprocess.Popen[str]]:
    """A script with `work`, jobs of which run until `go` exists if their number is 100 or more.

    Each leaves `ran-`, an `attempt-` for each time, and `saw-N` for how many it saw alive; it fails if
    `fail-NUMBER` exists, and the one of 7 once if `fails-once` does.
    """
    project = tmp_path / "project"  # what jobs leave beside it does not make it another
    project.mkdir(exist_ok=True)
    (project / "script.py").write_text(
        "import kinetic_core, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this test was started with\n"
        "from pathlib import Path\n"
        "@kinetic_core.run(accelerator='cpu', backend='local')\n"
        "def work(number):\n"
        f"    here = Path({str(tmp_path)!r})\n"
        "    alive = here / f'alive-{number}'\n"
        "    alive.touch()\n"
        "    (here / f'attempt-{number}-{time.time_ns()}').touch()\n"
        "    (here / f'saw-{len(list(here.glob(\"alive-*\")))}').touch()\n"
        "    (here / f'ran-{number}').touch()  # last: a test that sees it lets those that wait go on\n"
        "    while number >= 100 and not (here / 'go').exists() and not (here / f'fail-{number}').exists():\n"
        "        time.sleep(0.01)\n"
        "    alive.unlink()\n"
        "    if (here / f'fail-{number}').exists(): raise ValueError(number)\n"
        "    if number == 7 and (here / 'fails-once').exists():\n"
        "        (here / 'fails-once').unlink()\n"
        "        raise ValueError(number)\n"
        "    return number\n"
        f"{body}\n"
    )
    with subprocess.Popen(
        [sys.executable, "project/script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KINETIC_PACKAGE_ROOT": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        try:
            yield script
        finally:
            script.kill()


SIX = (
    "if __name__ == '__main__':\n"
    "    batch = work.run_async_map(range(100, 106), max_concurrent=2)\n"
    "    print(batch.group_id, flush=True)"
)


def first_run(script: subprocess.Popen[str], tmp_path: Path, count: int = 2) -> str:
    """Wait until the first jobs of a script's batch run; the batch's id."""
    assert script.stdout is not None
    group_id = script.stdout.readline().strip()
    wait_for(lambda: len(list(tmp_path.glob("ran-*"))) == count)
    return group_id


def supervisors(group_id: str) -> list[int]:
    """The batch's supervisor, and then the agents and guards that it, or one before it, has started.

    Looks twice: one that was started during the first look, by one that had ended before its turn to be read,
    is there in the second.
    """
    found = {}
    for entry in chain.from_iterable(Path("/proc").iterdir() for _ in range(2)):
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue  # it ended just now
            if b"\0supervisor\0" in command and f'"{group_id}"'.encode() in command:
                found[int(entry.name)] = int(parent)
    return sorted(found, key=lambda pid: pid not in found.values())


def own_id(folder: Path) -> str:
    """A test's own: they share a store."""
    return "grp-" + folder.name.replace("_", "-").lower()
