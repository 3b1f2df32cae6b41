"""The most memory that a large result takes: in user code's process, in its runner, and in who collects it.

Each figure is a multiple of the result's size, beyond what the process took before. Of containers of many
small objects it is a multiple of the encoded size, beyond what the objects take themselves. Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

from measuring import Verdict, report

MOST = 1.3
RUNNERS_MIB = 24.0
"""The runner only passes it on: pieces of it."""
VALUES = {
    "bytes": "b'x' * size",
    "bytearray": "bytearray(size)",
    "array": "numpy.ones(size, 'u1')",
    "array by columns": "numpy.ones((size >> 12, 4096), 'u1', order='F')",
    "str": "'x' * size",
    "str with umlauts": "'\u00fcx\u20ac' * (size // 6)",
    "object with a str": "Held('x' * size)",
    "list of bytes": "[b'x' * (size // 2), b'y' * (size // 2)]",
    "dicts of bytes of 16 KiB": "[{'id': n, 'x': bytes(1 << 14)} for n in range(size >> 14)]",
    "list of arrays of 64 KiB": "[numpy.ones(1 << 16, 'u1') for _ in range(size >> 16)]",
    "list of str of 16 KiB": "[chr(120 + n % 2) * (1 << 14) for n in range(size >> 14)]",
    "object with a list of str of 16 KiB": "Held([chr(120 + n % 2) * (1 << 14) for n in range(size >> 14)])",
    "object with a list of bytes of 16 KiB": "Held([bytes(1 << 14) for _ in range(size >> 14)])",
    "object with bytes": "Held(b'x' * size)",
    "object with an array": "Held(numpy.ones(size, 'u1'))",
}
MANY = {
    "list of floats": "[number * 0.37 for number in range(size // 19)]",
    "list of lists": "[[number, number * 0.37] for number in range(size // 27)]",
    "list of dicts": "[{'id': number, 'x': number * 0.37} for number in range(size // 60)]",
    "list of str of 1 KiB": "[chr(120 + number % 2) * 1024 for number in range(size >> 10)]",
    "list of bytes of 1 KiB": "[bytes(1024) for _ in range(size >> 10)]",
    "list of bytes of 16": "[number.to_bytes(16, 'big') for number in range(size // 50)]",
}
MOST_OF_MANY = 16.0
"""Lists and dicts become JSON as a whole, and are made of it as a whole."""
BEGIN = """
import hashlib, json, os, ssl, sys, cloudpickle, numpy, numpy.lib.format
from pathlib import Path
from kinetic_core._runner import codec, results, wire
from kinetic_core._runner.outcome import Outcome
from kinetic_core._runner.store import DirectoryStore
from kinetic_core.jobs.collect import read_outcome
from kinetic_core.store.directory import DirectoryObjectStore
from kinetic_core.store.documents import read_start

class Held:
    def __init__(self, value):
        self.value = value

def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

folder, size, key = sys.argv[1], int(sys.argv[2]), bytes(32)
Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
before = status("VmRSS")
"""
END = "\nprint(status('VmHWM') - before)"
LEAVE = """
with open(folder + "/outcome", "wb") as stream:
    results.succeeded({value}, ["__main__"]).write(stream)
"""
PUBLISH = """
frame = Outcome.from_file(folder + "/outcome").to_frame({"job_id": "a"}, key)
DirectoryStore("file:///x", folder).create_if_absent("result", frame)
"""
COLLECT = """
store = DirectoryObjectStore(Path(folder))
start = read_start(store, "result")
outcome = read_outcome(start, key, job_id="a", download=lambda make: store.download("result", make))
value = outcome.value_or_raise()
"""


MADE = """
value = {value}
made = status("VmRSS") - before
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
"""


def measure(mib: int = 400, mib_of_many: int = 32) -> list[Verdict]:
    """Each kind of value in turn."""
    return [*_measure_large(mib), *_measure_many(mib_of_many)]


def _run(code: str, folder: str, mib: int) -> list[int]:
    command = [sys.executable, "-c", BEGIN + code, folder, str(mib << 20)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [int(number) for number in done.stdout.split()]


def _measure_many(mib: int) -> list[Verdict]:
    verdicts = []
    for name, value in MANY.items():
        with tempfile.TemporaryDirectory() as folder:
            leave = MADE.format(value=value) + LEAVE.format(value="value")
            written, made = _run(leave + "\nprint(status('VmHWM') - before, made)", folder, mib)
            (encoded,) = _run(PUBLISH + "\nprint(os.path.getsize(folder + '/result'))", folder, mib)
            (read,) = _run(COLLECT + END, folder, mib)
            for who, most in {"user code": written, "reader": read - made}.items():
                what = f"{name} of {encoded >> 20} MiB encoded, beyond its objects, {who}"
                verdicts.append(Verdict(what, most / encoded, MOST_OF_MANY, "x"))
    return verdicts


def _measure_large(mib: int) -> list[Verdict]:
    verdicts = []
    for name, value in VALUES.items():
        with tempfile.TemporaryDirectory() as folder:
            steps = {"user code": LEAVE.format(value=value), "runner": PUBLISH, "reader": COLLECT}
            for who, step in steps.items():
                (taken,) = _run(step + END, folder, mib)
                most = RUNNERS_MIB / mib if who == "runner" else MOST
                verdicts.append(Verdict(f"{name} of {mib} MiB, {who}", taken / (mib << 20), most, "x"))
    return verdicts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=400)
    sys.exit(report(measure(parser.parse_args().mib)))
