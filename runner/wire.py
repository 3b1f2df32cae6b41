"""The wire format: every name, header and signature that client, pod and observer agree on.

Standard library only, and little of it: the runner pays for each import before user code starts.

A *frame* is how both the payload and the outcome are stored::

    b"KINETIC1"  | uint32 header length | JSON header | parts, back to back | 32 bytes HMAC-SHA256

The header lists the parts (name, length); the signature covers everything before it. A payload is not
signed (its digest is in the manifest) and ends with 32 zero bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from dataclasses import asdict, dataclass
from enum import StrEnum

PROTOCOL = 1
"""Version of everything in this file. A reader refuses another major version."""
SPARE = "_spare"
"""The directory of the runner's archive with packages for images that lack them."""

STATE = "state"
"""Metadata of an outcome: `succeeded`, `failed` or `dropped`, so that a listing tells how jobs ended."""
DROPPED = "dropped"
"""The state of a batch's input that was never started, because another had failed."""
WRITE_MARK = "kinetic-write"
"""Metadata of an object in Cloud Storage: a random mark of the write that made it. A writer whose answer was
lost finds its own mark when it tries again."""

MAGIC = b"KINETIC1"
_LENGTH = struct.Struct(">I")
_SIGNATURE_BYTES = 32
_UNSIGNED = bytes(_SIGNATURE_BYTES)
_MAX_HEADER = 16 << 20

EXIT_SUCCEEDED = 0
"""The outcome is committed and holds a value."""
EXIT_USER_ERROR = 1
"""The function failed; the attempt's outcome says how. Another attempt may follow."""
EXIT_NEVER_RETRY = 65
"""It failed in a way no retry mends (bad payload, SystemExit(2) of setup...): fail the index."""
EXIT_FENCED = 66
"""Another attempt owns the job, or its outcome is committed already: nothing was run."""
EXIT_INTERRUPTED = 143
"""The runner was asked to stop (SIGTERM) before the function had ended: 128 + 15, as a shell would say."""
EXIT_UNPUBLISHED = 67
"""The outcome could not be written to the store. An infrastructure restart may mend it."""
EXIT_REGROUP = 68
"""All hosts of the slice start anew together; the gang itself counts whose fault it was."""


class FailureClass(StrEnum):
    """Whose fault a failure is, and so whose retry budget it spends."""

    USER_ERROR = "user error"
    OUT_OF_MEMORY = "out of memory"
    OUT_OF_DISK = "out of disk"
    PREEMPTED = "preempted / node lost"
    IMAGE = "image"
    CONFIGURATION = "configuration"
    IMPOSSIBLE_REQUEST = "impossible request"
    QUOTA = "quota / stockout"
    DEADLINE = "deadline"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    CONTROL_PLANE = "control plane"


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt ended without a value. JSON-safe; absent facts are None."""

    failure_class: str
    message: str
    phase: str = "execute"
    exception_type: str | None = None
    traceback: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    last_lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {key: value for key, value in asdict(self).items() if value not in (None, ())}

    @classmethod
    def from_dict(cls, fields: dict[str, object]) -> Failure:
        known = {key: fields[key] for key in cls.__slots__ if key in fields}
        known["last_lines"] = tuple(known.get("last_lines", ()))  # type: ignore[arg-type]
        return cls(**known)  # type: ignore[arg-type]


class FrameError(ValueError):
    """The bytes are not a frame, or not one this protocol can read."""


class SignatureError(FrameError):
    """The frame's signature does not match its content under the given key."""


def encode_frame(header: dict[str, object], parts: dict[str, bytes], key: bytes | None = None) -> bytes:
    """A frame of `header` and named byte parts, signed with `key` unless that is None."""
    described = {**header, "parts": [[name, len(part)] for name, part in parts.items()]}
    text = json.dumps(described, separators=(",", ":"), sort_keys=True).encode()
    body = b"".join((MAGIC, _LENGTH.pack(len(text)), text, *parts.values()))
    return body + (hmac.digest(key, body, "sha256") if key else _UNSIGNED)


def decode_frame(frame: bytes, key: bytes | None = None) -> tuple[dict[str, object], dict[str, bytes]]:
    """Header and parts of a frame; the signature is checked first when a key is given.

    Raises FrameError for anything malformed or of another protocol, SignatureError for a bad signature.
    Nothing in a frame is ever evaluated here.
    """
    if key is not None:
        body, signature = frame[:-_SIGNATURE_BYTES], frame[-_SIGNATURE_BYTES:]
        if not hmac.compare_digest(hmac.digest(key, body, "sha256"), signature):
            raise SignatureError("the signature does not match: written by somebody without the job's key")
    header, start = _decode_header(frame)
    parts: dict[str, bytes] = {}
    end = len(frame) - _SIGNATURE_BYTES
    try:
        for name, length in header["parts"]:  # type: ignore[attr-defined]
            if not isinstance(length, int) or not 0 <= length <= end - start:
                raise FrameError(f"part {name!r} does not fit in the frame")
            parts[name] = frame[start : start + length]
            start += length
    except (KeyError, TypeError, ValueError) as exc:
        raise FrameError(f"the frame's list of parts is malformed: {exc}") from exc
    if start != end:
        raise FrameError("the frame's length does not match its parts")
    return header, parts


def _decode_header(frame: bytes) -> tuple[dict[str, object], int]:
    start = len(MAGIC) + _LENGTH.size
    if len(frame) < start + _SIGNATURE_BYTES or not frame.startswith(MAGIC):
        raise FrameError("not a Kinetic frame")
    (length,) = _LENGTH.unpack_from(frame, len(MAGIC))
    if length > min(_MAX_HEADER, len(frame) - start - _SIGNATURE_BYTES):
        raise FrameError("the frame's header is longer than the frame")
    try:
        header = json.loads(frame[start : start + length])
    except (ValueError, RecursionError) as exc:
        raise FrameError(f"the frame's header is not JSON: {exc}") from exc
    if not isinstance(header, dict) or header.get("protocol") != PROTOCOL:
        raise FrameError(f"the frame speaks another protocol than {PROTOCOL}; update the older side")
    return header, start + length


def digest(content: bytes) -> str:
    """SHA-256 in hex: how everything content-addressed is named."""
    return hashlib.sha256(content).hexdigest()


def runner_object(sha256: str) -> str:
    return f"runners/{sha256}.zip"


def pack_object(sha256: str) -> str:
    return f"packs/{sha256}.zip"


def tree_object(sha256: str) -> str:
    return f"trees/{sha256}.json"


def data_prefix(sha256: str) -> str:
    """Where data lies that is mounted: each file an object of its own path."""
    return f"data/{sha256}/"


def handle_object(job_id: str) -> str:
    return f"jobs/{job_id}/handle.json"


def payload_object(job_id: str) -> str:
    return f"jobs/{job_id}/payload.pkl"


def lock_object(job_id: str) -> str:
    """The exact versions that the job's first attempt installed, for all that follow."""
    return f"jobs/{job_id}/requirements.lock"


def result_object(job_id: str) -> str:
    """The committed outcome: written once, by the attempt that owns it or by an observer of its death."""
    return f"jobs/{job_id}/result"


def claim_object(job_id: str, attempt: int, host: int = 0) -> str:
    return f"{_attempt(job_id, attempt, host)}/claim.json"


def lease_object(job_id: str, attempt: int) -> str:
    """What an attempt renews for as long as it lives: see the runner's lease.py."""
    return f"{_attempt(job_id, attempt, 0)}/lease.json"


def spending_object(job_id: str, attempt: int, host: int) -> str:
    """For how long an attempt has held its accelerator: see the runner's spending.py."""
    return f"{_attempt(job_id, attempt, host)}/spending.json"


def memory_object(job_id: str, attempt: int) -> str:
    """That an attempt has nearly used up its memory: see the runner's exhaustion.py."""
    return f"{_attempt(job_id, attempt, 0)}/memory.json"


def debugger_object(job_id: str, pod_uid: str) -> str:
    """Where the debugger of a pod listens: see the runner's debugger.py."""
    return f"jobs/{job_id}/debuggers/{pod_uid}.json"


def attempt_outcome_object(job_id: str, attempt: int, host: int = 0) -> str:
    return f"{_attempt(job_id, attempt, host)}/outcome"


def log_object(job_id: str, attempt: int, sequence: int, host: int = 0) -> str:
    return f"{_attempt(job_id, attempt, host)}/log/{sequence:08d}"


def _attempt(job_id: str, attempt: int, host: int) -> str:
    """Where the n-th pod of a host keeps what is its own."""
    return f"jobs/{job_id}/attempts/{attempt}" + (f"/hosts/{host}" if host else "")


def gang_object(job_id: str, generation: int, name: str) -> str:
    """What the hosts of a slice tell each other: see the runner's gang.py."""
    return f"jobs/{job_id}/gang/{generation}/{name}"


def choice_object(job_id: str, choice: int) -> str:
    """Whether a job has `started` on one of its accelerators, or has `passed` it: decided once, by whoever
    creates it. Only after `passed` may there be a pod for the next.
    """
    return f"jobs/{job_id}/choices/{choice}"


def cancel_object(job_id: str) -> str:
    return f"jobs/{job_id}/cancelled"


def child_id(group_id: str, index: int) -> str:
    """The job id of one input of a batch: a function of the batch, so that attaching needs no list."""
    return f"{group_id}-{index}"


def child_key(key: bytes, index: int) -> bytes:
    """The key of one input's outcome, from that of the Job which runs it with others."""
    return hmac.digest(key, f"index {index}".encode(), "sha256")


def batch_object(group_id: str, name: str) -> str:
    """What all of a batch share: `manifest.json`, `finished.json`, ..."""
    return f"batches/{group_id}/{name}"


def batch_payload_object(group_id: str) -> str:
    """The payload without arguments; its header says where those of each input lie."""
    return batch_object(group_id, "payload")


def finished_object(group_id: str) -> str:
    """Its presence says that no further input will be submitted; it lists those never launched."""
    return batch_object(group_id, "finished.json")


def stop_object(group_id: str) -> str:
    """Its presence lets no further input of a batch with `fail_fast` start."""
    return batch_object(group_id, "stopped")


def outputs_prefix(job_id: str) -> str:
    return f"outputs/{job_id}"
