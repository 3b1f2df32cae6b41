"""The log of a child that crashes has the frames of user code, and every other byte as it was written."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core._runner import main
from kinetic_core._runner.stacks import CrashFilter
from kinetic_core.errors import JobFailed
from tests.runner.attempts import Attempts

RUNNER = str(Path(main.main.__code__.co_filename).parent)
CRASH = "Fatal Python error: Aborted\n\nCurrent thread 0x00007fbe123c5b80 (most recent call first):\n"
USERS = '  File "/w/train.py", line 7 in deeper\n  File "<string>", line 1 in <module>\n'
OURS = (
    f'  File "{RUNNER}/child.py", line 142 in _call\n'
    f'  File "{RUNNER}/main.py", line ??? in run_job\n'
    '  File "<string>", line 136 in <module>\n'
)
MORE = "\nThread 0x00007f (most recent call first):\n  <no Python frame>\nExtension modules: a.b (total: 1)\n"


def passed(text: str, sizes: random.Random, filtered: CrashFilter) -> str:
    data, shown = text.encode(), b""
    while data:
        size = sizes.choice((1, 2, 7, 30, 400))
        shown += filtered.passed(data[:size])
        data = data[size:]
    return (shown + filtered.rest()).decode()


@pytest.mark.parametrize("seed", range(20))
def test_only_frames_of_the_runner_are_left_out(seed: int) -> None:
    sizes = random.Random(seed)
    before = f"step 1\n{OURS}  10 %\r  20 %\nFatal\n"
    after = f'{MORE}  File "{RUNNER}/child.py", line 3, in user\n# {OURS.splitlines()[0]}\n\r\n  \n  File "x'
    written = before + CRASH + USERS + OURS + after
    assert passed(written, sizes, CrashFilter()) == before + CRASH + USERS + after
    whole = before + CRASH + OURS + after
    assert passed(whole, sizes, CrashFilter(keeps_all=True)) == whole


def test_lines_of_others_between_the_frames_pass_at_once() -> None:
    filtered, ours = CrashFilter(), OURS.encode().splitlines(keepends=True)
    assert filtered.passed(CRASH.encode() + ours[0]) == CRASH.encode()
    assert filtered.passed(b"epoch 3: ") == b"epoch 3: "
    assert filtered.passed(b"loss 0.1\n" + ours[1]) == b"loss 0.1\n"
    assert filtered.passed(ours[2][:20]) == b""
    assert filtered.passed(ours[2][20:] + b"50 %") == b"50 %"
    assert filtered.passed(b"  ") == b"  ", "it continues a line"
    assert filtered.rest() == b""


def crash() -> None:
    def deeper() -> None:
        print("before", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    deeper()


@pytest.mark.promise("gke: Kill, `os._exit`, segfault are observed facts")
def test_a_crash_shows_the_stack_of_user_code(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path).submit(crash)
    attempts.run()
    assert "before\nFatal Python error: Segmentation fault\n" in attempts.log
    assert [name for name in ("in deeper", "in crash") if name in attempts.log] == ["in deeper", "in crash"]
    assert RUNNER not in attempts.log
    last = "\n".join(attempts.outcome().failure.last_lines)
    assert "in crash" in last
    assert RUNNER not in last
    verbose = Attempts(tmp_path / "verbose").submit(crash)
    verbose.run(KINETIC_LOG_LEVEL="DEBUG")
    assert f'File "{RUNNER}/child.py"' in verbose.log


@pytest.mark.usefixtures("local_jobs")
def test_the_submitters_log_level_reaches_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_LOG_LEVEL", "debug")
    handle = kinetic_core.run(accelerator="cpu")(crash).run_async()
    with pytest.raises(JobFailed, match="killed by SIGSEGV"):
        handle.result()
    assert "child.py" in (handle.logs() or "")
