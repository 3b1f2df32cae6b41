"""Let a triggerer load no plugin of ours, as on Cloud Composer.

Every component of a test's Airflow imports this as it starts. A triggerer also gets nothing that only the API
server may import. Both are noted in the file `refused` of AIRFLOW_HOME.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

_REFUSED = ("airflow_provider.plugins", "airflow_provider.ui")


class Refusal(MetaPathFinder):
    """Finder of modules that are not there for a triggerer."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        del path, target
        if name.startswith(_REFUSED):
            with Path(os.environ["AIRFLOW_HOME"], "refused").open("a") as stream:
                stream.write(f"{name}\n")
            raise ModuleNotFoundError(f"{name} is not installed in this triggerer", name=name)


if "triggerer" in sys.orig_argv:
    sys.meta_path.insert(0, Refusal())
