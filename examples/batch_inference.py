# /// script
# dependencies = ["numpy"]
# ///
"""Inference over many files: a job for each part of a directory, every part's results in one table.

    python examples/batch_inference.py

The model is a `Data`: stored once, however many jobs read it. So is each part; on a cluster parts would
rather be `gs://` directories, which no machine but the pods reads.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import kinetic_core


@kinetic_core.run(accelerator="cpu", timeout=600, retries=1)
def predict(model: str, part: str) -> dict[str, int]:
    """The class of each text file below `part`, by the model at that path."""
    import numpy as np

    stored = json.loads(Path(model).read_text())
    words = {word: number for number, word in enumerate(stored["words"])}
    weights = np.array(stored["weights"])
    found = {}
    for path in sorted(Path(part).glob("*.txt")):
        counts = np.zeros(len(words))
        for word in path.read_text().split():
            if word in words:
                counts[words[word]] += 1
        found[path.name] = int(counts @ weights > 0)
    print(f"{len(found)} files", flush=True)
    return found


def make_inputs(folder: Path) -> tuple[Path, list[Path]]:
    """A model that tells good news from bad, and three directories of texts."""
    model = folder / "model.json"
    model.write_text(json.dumps({"words": ["rises", "falls"], "weights": [1.0, -1.0]}))
    parts = [folder / f"part-{number}" for number in range(3)]
    for number, part in enumerate(parts):
        part.mkdir()
        for each in range(4):
            told = "rises" if (number + each) % 2 else "falls"
            (part / f"{number}-{each}.txt").write_text(f"the rate {told} again")
    return model, parts


def classify(folder: Path) -> dict[str, int]:
    """Every file's class."""
    model, parts = make_inputs(folder)
    inputs = [
        {"model": kinetic_core.Data(str(model)), "part": kinetic_core.Data(str(part))} for part in parts
    ]
    batch = predict.run_async_map(inputs, max_concurrent=2)
    table: dict[str, int] = {}
    for index, found in batch.items():
        if isinstance(found, BaseException):
            raise found
        print(f"part {index} is done")
        table |= found
    return table


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as here:
        print(classify(Path(here)))
