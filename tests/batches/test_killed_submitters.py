"""Submitters of batches of this machine, killed before each thing they change on disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.batches.scripts import own_id, run_script

STEPS = """
import os

CHANGES = ("os.link", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "subprocess.Popen")


def start(step, **options):
    inputs = [1000 + 2 * step, 1001 + 2 * step]
    return work.run_async_map(inputs, group_id=f"OWN-{step}", max_concurrent=1, **options)


def in_child(action):
    child = os.fork()
    if not child:
        action()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(step):
    left = [None] * step

    def hook(event, arguments):
        if event in CHANGES and f"OWN-{step}" in str(arguments):
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left.pop()

    sys.addaudithook(hook)
    start(step, skip_done=AGAIN)


def all_steps():
    step = 0
    while True:
        if AGAIN:  # both have failed
            assert in_child(lambda: start(step).wait(timeout=60)) == 0
            for number in (0, 1):
                Path(f"fail-{1000 + 2 * step + number}").unlink()
        if in_child(lambda: die_at(step)) == 0:
            return step
        step += 1


if __name__ == "__main__":
    steps = all_steps()
    values = [start(step, skip_done=AGAIN).results(timeout=60) for step in range(steps + 1)]
    print(steps, sum(values, []) == list(range(1000, 1002 + 2 * steps)))
"""


@pytest.mark.promise("batches: Local backend: same semantics, `group_id=` and `skip_done=` too")
@pytest.mark.usefixtures("local_jobs")
@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["made", "again"])
def test_the_same_call_ends_what_one_killed_at_any_step_began(tmp_path: Path, again: bool) -> None:
    (tmp_path / "go").touch()
    if again:
        for number in range(1000, 1100):
            (tmp_path / f"fail-{number}").touch()
    script = STEPS.replace("OWN", own_id(tmp_path)).replace("AGAIN", str(again))
    with run_script(tmp_path, script) as running:
        out, err = running.communicate(timeout=300)
    assert (running.returncode, "Traceback" in err) == (0, False), err
    told = re.fullmatch(r"(\d+) True\n", out)
    assert told, out
    steps = int(told[1])
    assert steps > 10
    ran = [int(path.name.split("-")[1]) for path in tmp_path.glob("attempt-*")]
    expected = [1000 + number for number in range(2 * (steps + 1))]
    assert sorted(ran) == sorted(expected * (2 if again else 1))
