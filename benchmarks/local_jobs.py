"""What a job costs on the local backend, against bare Python processes."""

from __future__ import annotations

import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from measuring import Verdict, median_seconds, report, seconds

import kinetic_core
from kinetic_core.jobs import collect

_JOBS, _AT_ONCE = 100, 4
_HUGE, _BEGUN = 10_000, 8
_OTHERS = 300


@kinetic_core.run(accelerator="cpu", backend="local")
def trivial(x: int) -> int:
    return x + 1


@kinetic_core.run(accelerator="cpu", backend="local")
def clock() -> float:
    import time

    return time.time()


@kinetic_core.run(accelerator="cpu", backend="local")
def sleeping(seconds: float) -> None:
    import time

    time.sleep(seconds)


def bare_processes() -> None:
    """As many bare processes as there are jobs, as many at once."""
    command = [sys.executable, "-c", "import cloudpickle"]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda _: subprocess.run(command, check=True), range(_JOBS)))


def jobs() -> None:
    values = trivial.run_async_map(range(_JOBS), max_concurrent=_AT_ONCE).results()
    assert values == [x + 1 for x in range(_JOBS)]


def collection_delay() -> float:
    """Seconds from the moment the outcome is in the store to the moment `result()` returns it."""
    handle = clock.run_async()
    handle.result(cleanup=False)
    returned = time.time()
    header = collect.collect(handle.place, handle)
    finished = header.times.get("finished")
    assert finished is not None
    return returned - float(finished)


def start_delay() -> float:
    """Seconds from the runner's start to the user's function, less a bare interpreter's start."""
    handle = clock.run_async()
    entered = handle.result(cleanup=False)
    started = handle.observe().started_at
    assert started is not None
    return float(entered) - started


def submitting(home: Path) -> Verdict:
    """Processor time of submitting a function again: of a long module, over that of a short one."""
    sys.path.insert(0, str(home))
    os.environ["KINETIC_PACKAGE_ROOT"] = str(home)
    took = {}
    for name, others in (("short", 0), ("long", _OTHERS)):
        more = "".join(
            f"def g{i}(a, b=2):\n    y = [a, b]\n    return y, len(y) + {i}\n" for i in range(others)
        )
        Path(home, f"{name}.py").write_text(f"WORD = 'word'\ndef f(): return WORD\n{more}")
        f = kinetic_core.run(accelerator="cpu", backend="local")(importlib.import_module(name).f)
        assert f() == "word"
        spent = []
        for _ in range(9):
            begun = time.process_time()
            handle = f.run_async()
            spent.append(time.process_time() - begun)
            handle.result()
        took[name] = statistics.median(spent)
    sys.path.remove(str(home))
    what = f"a submit, function of a module of {3 * _OTHERS} lines / of 2"
    return Verdict(what, took["long"] / took["short"], 1.3, "x", f"processor; {took['long']:.4f} s")


def cancelling() -> list[Verdict]:
    """Ten thousand inputs of which eight have begun, cancelled by the command; then what lists take."""
    batch = sleeping.run_async_map([600] * _HUGE, max_concurrent=_BEGUN)
    batch.close()
    logs = Path(os.environ["KINETIC_LOCAL_STORE"], "logs")
    while not any(logs.glob(f"{batch.group_id}-*")):
        time.sleep(0.1)
    asked = [
        (f"{_HUGE} inputs of which {_BEGUN} have begun, cancelled", ("batch", "cancel", batch.group_id), 5.0),
        ("kinetic jobs list -n 5, beside them", ("jobs", "list", "-n5"), 2.0),
        ("kinetic, beside them", (), 3.0),
        ("kinetic cost, beside them", ("cost",), 5.0),
        ("kinetic jobs list of all", ("jobs", "list"), 8.0),
    ]
    return [Verdict(what, seconds(partial(command, *words)), target, "s") for what, words, target in asked]


def command(*words: str) -> None:
    program = Path(sys.executable).with_name("kinetic")
    environment = {**os.environ, "KINETIC_BACKEND": "local"}
    subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL, env=environment)


def measure() -> list[Verdict]:
    with tempfile.TemporaryDirectory(prefix="kinetic-bench-") as home:
        os.environ["KINETIC_LOCAL_STORE"] = home
        os.environ["XDG_CACHE_HOME"] = home
        submits = submitting(Path(tempfile.mkdtemp(dir=home)))
        os.environ["KINETIC_PACKAGE_ROOT"] = str(Path(__file__).parent)
        trivial(1)
        bare = min(seconds(bare_processes) for _ in range(2))
        ours = min(seconds(jobs) for _ in range(2))
        delays = [collection_delay() for _ in range(9)]
        starts = [start_delay() for _ in range(9)]
        python = median_seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 9)
        return [
            Verdict(
                f"{_JOBS} jobs / {_JOBS} bare processes, {_AT_ONCE} at a time",
                ours / bare,
                2.5,
                "x",
                f"{ours:.2f} s",
            ),
            Verdict("outcome committed -> result() returns", statistics.median(delays), 0.3, "s"),
            Verdict(
                "runner starts -> user function, over bare Python",
                statistics.median(starts) - python,
                0.15,
                "s",
            ),
            submits,
            *cancelling(),
        ]


if __name__ == "__main__":
    sys.exit(report(measure()))
