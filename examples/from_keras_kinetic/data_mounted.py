"""Data that is mounted, not copied: a job reads what it opens, from a bucket or from what was stored for it.

KINETIC_BACKEND=local python examples/from_keras_kinetic/data_mounted.py [gs://BUCKET/DIRECTORY/]

Without an address a directory of this machine is stored, and mounted. The local backend copies it.
"""

import os
import sys
import tempfile
from pathlib import Path

import kinetic_core.compat as kinetic


def files(folder: str) -> list[str]:
    return sorted(name for _, _, names in os.walk(folder) for name in names)


def first_words(path: str) -> str:
    with Path(path).open(encoding="utf-8") as stream:
        return stream.read(9)


if __name__ == "__main__":
    made = Path(tempfile.mkdtemp())
    (made / "part-0.txt").write_text("one two three")
    (made / "part-1.txt").write_text("four")
    dataset = kinetic.Data(sys.argv[1] if len(sys.argv) > 1 else str(made), fuse=True)
    one = kinetic.Data(str(made / "part-0.txt"), fuse=True)
    place = f"{made}-mounted"

    run = kinetic.run(accelerator="cpu")
    print("argument", run(files)(dataset))
    print("single file", run(first_words)(one))
    in_volume = kinetic.run(accelerator="cpu", volumes={place: dataset})
    print("volume", in_volume(files)(place))
