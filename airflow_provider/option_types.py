"""The types of a task's options: those of `run`, a template, or what another task gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from airflow.sdk import XComArg

    from kinetic_core.data.data import Data
    from kinetic_core.model.accelerators import Accelerator

    Text: TypeAlias = str | XComArg | None
    Number: TypeAlias = float | str | XComArg | None
    Truth: TypeAlias = bool | str | XComArg | None
    Amount: TypeAlias = int | str | XComArg | None
    Texts: TypeAlias = Sequence[str | XComArg] | XComArg | None
    Labels: TypeAlias = Mapping[str, str] | Mapping[str, str | XComArg] | XComArg | None
    Objects: TypeAlias = Sequence[Mapping[str, Any]] | XComArg | None
    Fields: TypeAlias = Mapping[str, Any] | XComArg | None
    Hardware: TypeAlias = str | Accelerator | Sequence[str | Accelerator | XComArg] | XComArg | None
    Requirements: TypeAlias = str | Path | Sequence[str | XComArg] | XComArg | None
    Volumes: TypeAlias = Mapping[str, Data] | XComArg | None
