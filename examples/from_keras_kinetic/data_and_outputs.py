"""Data as plain paths, an argument and a volume; and where files go that stay.

KINETIC_BACKEND=local python examples/from_keras_kinetic/data_and_outputs.py
"""

import os
import tempfile
from pathlib import Path

import kinetic_core.compat as kinetic


def count(folder: str, name: str) -> int:
    return len(Path(folder, name).read_text().split())


if __name__ == "__main__":
    dataset = Path(tempfile.mkdtemp())
    (dataset / "words.txt").write_text("one two three")
    run = kinetic.run(accelerator="cpu")
    print("argument", run(count)(kinetic.Data(str(dataset)), "words.txt"))

    place = f"{dataset}-in-the-job"

    @kinetic.run(accelerator="cpu", volumes={place: kinetic.Data(str(dataset))})
    def count_in_volume() -> int:
        return len(Path(place, "words.txt").read_text().split())

    print("volume", count_in_volume())

    @run
    def is_output_durable() -> bool:
        return os.environ["KINETIC_OUTPUT_DIR"] != str(Path.cwd())

    print("outputs", is_output_durable())
