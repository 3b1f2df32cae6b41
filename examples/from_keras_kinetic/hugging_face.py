"""A dataset of the Hugging Face Hub as the directory that `datasets.load_from_disk` reads.

python examples/from_keras_kinetic/hugging_face.py [hf://ORGANISATION/DATASET]
"""

# /// script
# dependencies = ["datasets"]
# ///
import sys

import kinetic_core.compat as kinetic

DATASET = sys.argv[1] if len(sys.argv) > 1 else "hf://stanfordnlp/imdb"


@kinetic.run(accelerator="cpu", capture_env_vars=["HF_ENDPOINT", "HF_TOKEN"])
def look(whole: str, train: str) -> tuple[list[str], int, list[str]]:
    import datasets

    splits, rows = datasets.load_from_disk(whole), datasets.load_from_disk(train)
    return sorted(splits), len(rows), sorted(rows.column_names)


if __name__ == "__main__":
    splits, rows, columns = look(kinetic.Data(DATASET), kinetic.Data(f"{DATASET}?split=train"))
    print("splits", splits)
    print("rows of the first", rows, "with", columns)
