"""Data of sizes at which careless code fails: one huge file, very many tiny ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import Data

pytestmark = pytest.mark.usefixtures("gke")
_HUGE = 5 << 30
_FILES = 100_000


@kinetic_core.run(accelerator="cpu")
def measure(huge: str, many: str) -> tuple[int, bytes, int, int]:
    """The size and the last bytes of a file; number of files below a folder, and of their bytes."""
    import os
    from pathlib import Path

    with Path(huge).open("rb") as stream:
        stream.seek(-4, os.SEEK_END)
        end = stream.read()
    sizes = [path.stat().st_size for path in Path(many).rglob("*") if path.is_file()]
    return Path(huge).stat().st_size, end, len(sizes), sum(sizes)


@pytest.mark.promise("data: 5 GB sparse, and 100,000 files of 10 bytes")
def test_five_sparse_gigabytes_and_100_000_tiny_files(tmp_path: Path) -> None:
    huge, many = tmp_path / "huge", tmp_path / "many"
    with huge.open("wb") as stream:
        stream.truncate(_HUGE - 4)
        stream.seek(0, os.SEEK_END)
        stream.write(b"last")
    for folder in range(_FILES // 100):
        (many / f"{folder:03}").mkdir(parents=True)
        for number in range(100):
            (many / f"{folder:03}/{number:02}").write_bytes(b"%05d%05d" % (folder, number))
    seen = measure.run_async(Data(str(huge)), Data(str(many))).result(stream_logs=False)
    assert seen == (_HUGE, b"last", _FILES, 10 * _FILES)
