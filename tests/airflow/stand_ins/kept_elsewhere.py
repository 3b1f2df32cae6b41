"""An XCom backend that keeps values in files, and leaves their names in Airflow's database."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk.bases.xcom import BaseXCom


class Files(BaseXCom):
    """One file for each value, in $KEPT_ELSEWHERE."""

    @staticmethod
    def serialize_value(value: Any, *, key: str = "", task_id: str = "", **_: Any) -> Any:
        file = Path(os.environ["KEPT_ELSEWHERE"], f"{task_id}-{key}-{os.urandom(4).hex()}")
        file.write_text(json.dumps(BaseXCom.serialize_value(value)))
        return BaseXCom.serialize_value(str(file))

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        kept = json.loads(Path(BaseXCom.deserialize_value(result)).read_text())
        return BaseXCom.deserialize_value(SimpleNamespace(value=kept))
