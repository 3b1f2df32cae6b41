"""Outcomes: how an attempt ended, as the frame that is signed and stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import wire

_MAX_REPR = 2000


@dataclass(frozen=True)
class Outcome:
    """How user code ended, before the runner adds who ran it.

    `parts` hold the value or the exception in the way `codec` names: `typed`, `pickle` or `none`.
    `retry` is False where another attempt cannot end differently.
    """

    state: str
    codec: str
    parts: Mapping[str, bytes]
    failure: wire.Failure | None = None
    result_type: str | None = None
    result_repr: str | None = None
    retry: bool = True

    @property
    def is_infrastructure(self) -> bool:
        """Whether a service failed it, which is not user code's fault."""
        return self.failure is not None and self.failure.failure_class == wire.FailureClass.CONTROL_PLANE

    def to_frame(self, facts: Mapping[str, object], key: bytes | None = None) -> bytes:
        """The frame of this outcome, with `facts` about the attempt in its header."""
        header: dict[str, object] = {"protocol": wire.PROTOCOL, "author": "runner", **facts}
        header |= {"state": self.state, "codec": self.codec, "retry": self.retry}
        if self.failure is not None:
            header["failure"] = self.failure.to_dict()
        if self.result_type is not None:
            header["result_type"] = self.result_type
        if self.result_repr is not None:
            header["result_repr"] = self.result_repr
        return wire.encode_frame(header, dict(self.parts), key)

    @classmethod
    def from_frame(cls, frame: bytes) -> Outcome:
        """The outcome a child process left for its parent. Raises FrameError."""
        header, parts = wire.decode_frame(frame)
        failure = header.get("failure")
        return cls(
            state=str(header["state"]),
            codec=str(header["codec"]),
            parts=parts,
            failure=wire.Failure.from_dict(failure) if isinstance(failure, dict) else None,
            result_type=_text(header.get("result_type")),
            result_repr=_text(header.get("result_repr")),
            retry=bool(header.get("retry", True)),
        )


def failed(
    failure_class: str,
    message: str,
    phase: str,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    retry: bool = True,
) -> Outcome:
    """An outcome without an exception: the process died, or the runner itself could not go on."""
    failure = wire.Failure(failure_class, message, phase, exit_code=exit_code, signal=signal)
    return Outcome("failed", "none", {}, failure, retry=retry)


def type_name(value: Any) -> str:
    """The qualified name of a value's type, without `builtins.`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def safe_repr(value: Any) -> str:
    """At most 2,000 characters of `repr(value)`, whatever its `__repr__` does."""
    try:
        return repr(value)[:_MAX_REPR]
    except Exception as exc:  # noqa: BLE001  a user's __repr__ may raise anything
        return f"<{type_name(value)}, whose repr failed: {type(exc).__name__}>"


def _text(value: object) -> str | None:
    return None if value is None else str(value)
