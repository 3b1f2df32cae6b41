"""What is installed in clusters besides our own: its projects' releases, as they are.

`.ci/vendor_add_ons.py` makes the files here; `vendored.json` says of which version, from where, under which
licence, and with which checksum.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kinetic_core.errors import ConfigurationError

LWS = "lws"
KUEUE = "kueue"
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class AddOn:
    """Something that a cluster is given. `objects` are in the order in which they are made."""

    title: str
    version: str
    image: str
    objects: tuple[Mapping[str, Any], ...] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.title} {self.version}"


@cache
def add_on(name: str, folder: Path = _FOLDER) -> AddOn:
    """One of those that are here. Raises ConfigurationError for a file that is not what was put here."""
    about = json.loads((folder / "vendored.json").read_text(encoding="utf-8"))[name]
    path = folder / f"{name}.json.gz"
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        raise ConfigurationError(
            f"{path} is not {about['title']} {about['version']} as it was released with this package: "
            "install airflow-provider-kinetic again"
        )
    return AddOn(
        about["title"], about["version"], about["image"], tuple(json.loads(gzip.decompress(content)))
    )
