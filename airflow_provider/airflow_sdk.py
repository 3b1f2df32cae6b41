"""Names of Airflow that have moved between its versions.

The `common-compat` provider knows where each is, but only from its version 1.8 on; the constraints of Airflow
3.1.0 have 1.7.4. Names are looked up when they are first asked for: most are needed by few processes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        BaseHook,
        BaseSensorOperator,
        conf,
        redact,
    )

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "BaseHook",
    "BaseSensorOperator",
    "conf",
    "redact",
]

_IN_AIRFLOW_3_1 = {
    "AirflowException": "airflow.exceptions",
    "AirflowFailException": "airflow.exceptions",
    "AirflowNotFoundException": "airflow.exceptions",
    "AirflowSensorTimeout": "airflow.exceptions",
    "AirflowSkipException": "airflow.exceptions",
    "AirflowTaskTimeout": "airflow.exceptions",
    "BaseHook": "airflow.sdk",
    "BaseSensorOperator": "airflow.sdk",
    "conf": "airflow.configuration",
    "redact": "airflow.sdk.execution_time.secrets_masker",
}


def __getattr__(name: str) -> Any:
    if name not in _IN_AIRFLOW_3_1:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module("airflow.providers.common.compat.sdk")
    except ModuleNotFoundError:
        module = import_module(_IN_AIRFLOW_3_1[name])
    return getattr(module, name)
