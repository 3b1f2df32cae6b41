"""The runner's archive: the same everywhere, and kept between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.bootstrap import runner_archive
from kinetic_core.connections import default_connections
from kinetic_core.jobs.runner_archive import note_runner, stored_runner
from kinetic_core.testing import kubelet as behaviours
from tests.batches.places import Place


@pytest.mark.promise("data: No Docker on the client; the client is not installed in pods")
def test_the_runner_archive_is_the_same_everywhere(tmp_path: Path) -> None:
    digest, content = runner_archive(default_connections().settings.cache)
    assert wire.digest(content) == digest
    assert digest_elsewhere(tmp_path) == digest


def test_a_damaged_runner_archive_is_made_again(tmp_path: Path) -> None:
    digest = digest_elsewhere(tmp_path)
    (kept,) = (tmp_path / "kinetic" / "runners").iterdir()
    written = kept.stat().st_mtime_ns
    assert digest_elsewhere(tmp_path) == digest
    assert kept.stat().st_mtime_ns == written
    kept.write_bytes(kept.read_bytes()[:-1])
    assert digest_elsewhere(tmp_path) == digest
    assert wire.digest(kept.read_bytes()[64:]) == digest


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_an_archive_that_somebody_else_wrote_is_not_believed(tmp_path: Path) -> None:
    digest = digest_elsewhere(tmp_path)
    (kept,) = (tmp_path / "kinetic" / "runners").iterdir()
    other = b"not our runner"
    kept.write_bytes(wire.digest(other).encode() + other)
    assert digest_elsewhere(tmp_path) == wire.digest(other), "what is its owner's is"
    os.chown(kept, 12345, 12345)
    assert digest_elsewhere(tmp_path) == digest


@pytest.mark.attack
def test_a_runner_that_a_bucket_has_lost_is_stored_again(tmp_path: Path) -> None:
    """The next call's request finds it gone; without such a request, it is looked for every ten minutes."""
    here, now = Place(tmp_path, lambda _: behaviours.succeeds()), [0.0]
    note_runner(here.backend, is_there=False)  # another test of this process may have found it
    name = object_names.runner(stored_runner(here.backend, lambda: now[0]).sha256)

    def is_stored_after(seconds: float) -> bool:
        here.store.delete(name)
        now[0] += seconds
        stored_runner(here.backend, lambda: now[0])
        return here.store.find(name) is not None

    assert [is_stored_after(seconds) for seconds in (599, 2, 1)] == [False, True, False]
    note_runner(here.backend, is_there=False)
    assert is_stored_after(0)
    here.close()


def digest_elsewhere(cache: Path) -> str:
    """The archive's digest in another process, with that cache."""
    program = (
        "from kinetic_core.backends.kubernetes.bootstrap import runner_archive\n"
        "from kinetic_core.settings import read_settings\n"
        "print(runner_archive(read_settings().cache)[0])\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "XDG_CACHE_HOME": str(cache)},
    )
    return other.stdout.strip()
