"""A dataset of the hub in the form that `datasets.load_from_disk` reads, made by the job's own `datasets`.

The library runs in a process of its own, offline, and without the project on its path: a `datasets.py` of the
project, or what the library leaves behind, changes nothing here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

_PROGRAM = """\
import json, sys
from importlib.util import find_spec
files, target, split, splits = json.load(sys.stdin)
if find_spec("datasets") is None:
    sys.exit(3)
from datasets import load_dataset
asked = {"data_files": splits} if splits else {}
load_dataset("parquet" if splits else files, split=split, **asked).save_to_disk(target)
"""
_NO_PACKAGE = 3
"""Exit code of the program if there is no `datasets`."""
_TOLD = 2000
"""Characters of what the library said that an error repeats."""


def save_dataset(
    name: str, files: str, target: str, split: str | None, paths: Sequence[str], away: str
) -> None:
    """Write the dataset in the directory `files` to the directory `target`, which is created.

    `paths` are those of its files, relative to `files`; what lies below `away` is not imported.
    Raises ValueError, calling the dataset `name`, if the job has no `datasets` or that cannot read the files.
    """
    cache = os.path.join(os.path.dirname(files), "cache")
    offline = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": cache,
        "HF_DATASETS_CACHE": cache,
    }
    own = away + os.sep
    path = os.pathsep.join(each for each in sys.path if each and not (away and f"{each}/".startswith(own)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM],
        input=json.dumps([files, target, split, _parquet_splits(files, paths)]),
        env={**os.environ, **offline, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=os.path.dirname(files),
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return
    if done.returncode == _NO_PACKAGE:
        raise ValueError(
            f"{name} is written for datasets.load_from_disk, and the job has no package 'datasets': add it "
            "to the requirements, or take the files as they are with plain=true behind the path"
        )
    raise ValueError(
        f"{name} cannot be read by the job's package 'datasets':\n{done.stderr[-_TOLD:].strip()}"
    )


def _parquet_splits(files: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the files by split, of a dataset as the hub converts it: `config/split/0000.parquet`.

    Empty for any other, whose splits the library finds out.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        parts = path.split("/")
        if len(parts) != 3 or not path.endswith(".parquet"):
            return {}
        found.setdefault(parts[1].removeprefix("partial-"), []).append(os.path.join(files, path))
    return found
