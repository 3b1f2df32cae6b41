"""What shipping a project costs: first time, unchanged, and after one edited line.

With `STORAGE_EMULATOR_HOST` (`testcluster env`) the first time is also measured into a bucket, for source
code and for files that cannot be compressed, against `tar | zstd -3 | upload` in the same run.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from measuring import Verdict, report, seconds

import kinetic_core
from kinetic_core.connections import Connections
from kinetic_core.jobs.bundle import pack
from kinetic_core.options import RunOptions
from kinetic_core.project.tree import store_data
from kinetic_core.settings import Settings
from kinetic_core.store.gcs import GcsObjectStore

_FUNCTION = "def work(x):\n    return x + 1\n"


def make_project(root: Path, files: int, size: int) -> None:
    """A project of text that compresses about as source code does, with a few incompressible files."""
    random.seed(7)
    words = [f"{random.choice('abcdefgh')}{random.randrange(1 << 20):x}" for _ in range(4000)]
    for number in range(files):
        folder = root / f"package_{number % 40:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        amount = size // files
        if number % 20 == 0:
            content = random.randbytes(amount)
        else:
            content = " ".join(random.choices(words, k=amount // 7 + 1)).encode()[:amount]
        (folder / f"module_{number:05d}.py").write_bytes(content)
    (root / "pyproject.toml").write_text("[project]\nname = 'bench'\n")
    (root / "work.py").write_text(_FUNCTION)


def make_source_code(root: Path, files: int, size: int) -> None:
    """Modules made of functions of the standard library, of 0.3 to 1.7 times the mean size."""
    rng = random.Random(7)
    blocks = [
        block
        for module in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        for block in re.split(r"\n(?=def |class |    def )", module.read_text(errors="replace"))
    ]
    for number in range(files):
        folder = root / f"package_{number % 40:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        parts, left = [], int(size / files * rng.uniform(0.3, 1.7))
        while left > 0:
            parts.append(rng.choice(blocks)[:left])
            left -= len(parts[-1]) + 1
        (folder / f"module_{number:05d}.py").write_text("\n".join(parts))


def make_binaries(root: Path, files: int, size: int) -> None:
    """Files that cannot be compressed, all of one size."""
    rng = random.Random(7)
    for number in range(files):
        folder = root / f"shard_{number % 40:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:05d}.bin").write_bytes(rng.randbytes(size // files))


def stat_walk(root: Path) -> int:
    """A bare walk: every entry's stat, nothing else."""
    count, pending = 0, [str(root)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
    return count


def stored(store: Path) -> int:
    """Bytes of every object."""
    return sum(file.stat().st_size for file in store.rglob("*") if file.is_file())


def ship(project: Path, home: Path) -> None:
    """Everything a submit does with the project and its function, short of creating the job."""
    namespace: dict[str, object] = {"__name__": "work", "__file__": str(project / "work.py")}
    exec(compile(_FUNCTION, str(project / "work.py"), "exec"), namespace)
    settings = Settings(local_store=home / "local", cache=home / "cache", package_root=str(project))
    pack(namespace["work"], RunOptions.checked("cpu", backend="local"), Connections(settings))  # type: ignore[arg-type]


def tar_seconds(project: Path, target: Path) -> float:
    """The same project through tar and zstd -3, both as the system has them."""
    command = f"tar -C {project} -cf - . | zstd -q -3 -T2 -o {target} -f"
    return min(seconds(lambda: subprocess.run(["bash", "-c", command], check=True)) for _ in range(3))


def measure() -> list[Verdict]:
    home, here = Path(tempfile.mkdtemp(prefix="kinetic-bench-")), Path.cwd()
    try:
        return [*_two_thousand(home / "a"), *_twenty_thousand(home / "b"), *_into_a_bucket(home / "c")]
    finally:
        os.chdir(here)
        shutil.rmtree(home)


def _two_thousand(home: Path) -> list[Verdict]:
    project = home / "project"
    make_project(project, 2000, 50 << 20)
    os.chdir(project)
    first = seconds(lambda: ship(project, home))
    before = stored(home / "local")
    walk = statistics.median(seconds(lambda: stat_walk(project)) for _ in range(9))
    again = statistics.median(seconds(lambda: ship(project, home)) for _ in range(9))
    grown = stored(home / "local") - before
    limit = 5 * walk + 0.020
    verdicts = [
        Verdict("2,000 files unchanged: submit", again, limit, "s", f"stat walk {walk * 1000:.1f} ms"),
        Verdict("2,000 files unchanged: stored", grown / 1000, 20, "KB"),
    ]
    if shutil.which("zstd"):
        tar = tar_seconds(project, home / "project.tar.zst")
        verdicts.append(
            Verdict("2,000 files first time / tar + zstd -3", first / tar, 2.5, "x", f"{first:.2f} s")
        )
    else:
        print("skipped: first time against tar + zstd -3 (no zstd on this machine)")
    return verdicts


def _twenty_thousand(home: Path) -> list[Verdict]:
    project = home / "project"
    make_project(project, 20_000, 40 << 20)
    os.chdir(project)
    ship(project, home)
    ship(project, home)
    before = stored(home / "local")
    edited = project / "package_07" / "module_00007.py"
    edited.write_bytes(edited.read_bytes() + b"\nx = 1\n")
    edit = seconds(lambda: ship(project, home))
    return [
        Verdict("20,000 files, one line edited: submit", edit, 0.4, "s"),
        Verdict("20,000 files, one line edited: stored", (stored(home / "local") - before) / 1000, 100, "KB"),
    ]


def _into_a_bucket(home: Path) -> list[Verdict]:
    if "STORAGE_EMULATOR_HOST" not in os.environ or not (shutil.which("zstd") and shutil.which("curl")):
        print("skipped: into a bucket (no STORAGE_EMULATOR_HOST, zstd or curl)")
        return []
    verdicts: list[Verdict] = []
    for files, size in (2000, 58 << 20), (20_000, 372 << 20):
        for kind, make in ("source code", make_source_code), ("binaries", make_binaries):
            project = home / f"{kind}-{files}"
            make(project, files, size)
            verdicts += _first_and_unchanged(f"{files:,} files of {kind}", project)
            shutil.rmtree(project)
    return verdicts


def _first_and_unchanged(what: str, project: Path) -> list[Verdict]:
    """Medians of three: tar, zstd and curl, and ours, in turns."""
    peer, first, again, walk = list[float](), list[float](), list[float](), list[float]()
    for _ in range(3):
        store = GcsObjectStore.at(f"test-bucket/bench-{secrets.token_hex(4)}")
        store.find("warm-up")
        with tempfile.TemporaryDirectory() as cache:
            peer.append(seconds(lambda: upload_archive(project)))
            first.append(seconds(lambda: store_data(project, store, cache=Path(cache))))  # noqa: B023
            again.append(seconds(lambda: store_data(project, store, cache=Path(cache))))  # noqa: B023
            walk.append(seconds(lambda: stat_walk(project)))
        for folder in ("packs/", "trees/"):
            store.delete_all(folder)
    ours, theirs, unchanged, bare = map(statistics.median, (first, peer, again, walk))
    return [
        Verdict(f"{what}, bucket / tar + zstd", ours / theirs, 1.3, "x", f"{ours:.2f} s, {theirs:.2f} s"),
        Verdict(f"{what}, unchanged / stat walk", unchanged / bare, 4, "x", f"{unchanged * 1000:.0f} ms"),
    ]


def upload_archive(project: Path) -> None:
    """The project through tar and zstd -3 into the bucket, without a file in between."""
    host = os.environ["STORAGE_EMULATOR_HOST"]
    place = f"{host}/upload/storage/v1/b/test-bucket/o?uploadType=media&name=bench-archive"
    command = f"tar -C '{project}' -cf - . | zstd -q -3 -T2 | curl -sf -T - -X POST '{place}' -o /dev/null"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)


if __name__ == "__main__":
    print(f"kinetic {kinetic_core.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    sys.exit(report(measure()))
