"""Names of all objects in the store, which client, pod and observer agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .wire import FrameError, digest


def runner(sha256: str) -> str:
    return f"runners/{sha256}.zip"


def pack(sha256: str) -> str:
    return f"packs/{sha256}.zip"


def tree(sha256: str) -> str:
    return f"trees/{sha256}.json"


def data_prefix(sha256: str) -> str:
    """Return the prefix of data that is mounted: each file is an object of its own path."""
    return f"data/{sha256}/"


def handle(job_id: str) -> str:
    return f"jobs/{job_id}/handle.json"


def payload(job_id: str, sha256: str) -> str:
    """Return the name of a payload, by its content: equal calls whose pickles differ store one each."""
    return f"jobs/{job_id}/payload-{sha256}{PAYLOAD_END}"


PAYLOAD_END = ".pkl"
"""Suffix of payloads and of no other object below `jobs/`: pods may not create one (`provision.iam`)."""


def lock(job_id: str) -> str:
    """Return the name of the signed lock: the exact versions that all hosts and attempts install."""
    return f"jobs/{job_id}/requirements.lock"


def result(job_id: str) -> str:
    """Return the name of the committed outcome: written once, by its attempt or an observer of its death."""
    return f"jobs/{job_id}/result"


def require_place(header: Mapping[str, Any], job_id: str, name: str | None = None) -> None:
    """Raise FrameError unless the header was signed for `name`: by default, for the job's outcome.

    The end of an attempt that is not the job's end names its object, and is invalid in any other place.
    """
    place = result(job_id) if name is None else name
    if header.get("job_id") != job_id:
        raise FrameError(f"it belongs to {str(header.get('job_id'))[:100]!r}, not to {job_id}")
    if (told := header.get("object", result(job_id))) != place:
        raise FrameError(f"it was signed as {str(told)[:200]}, and copied to {place}")


def claim(job_id: str, attempt: int | str, host: int = 0) -> str:
    return f"{_attempt(job_id, attempt, host)}/claim.json"


RENEWED = ("lease.json", "spending.json", "still.json")
"""Suffixes of all objects that a runner replaces. It only creates objects of other names: pods need no right
to replace or delete outcomes (`kinetic_core.provision.iam`)."""


def lease(job_id: str, attempt: int) -> str:
    """Return the name of the lease that an attempt renews while it lives: see the runner's lease.py."""
    return f"{_attempt(job_id, attempt, 0)}/lease.json"


def spending(job_id: str, attempt: int, host: int) -> str:
    """Return the name of an attempt's time on its accelerator: see the runner's deadline.py."""
    return f"{_attempt(job_id, attempt, host)}/spending.json"


def memory(job_id: str, attempt: int) -> str:
    """Return the name of the note that an attempt nearly used up its memory: see the runner's memory.py."""
    return f"{_attempt(job_id, attempt, 0)}/memory.json"


def debugger(job_id: str, pod_uid: str) -> str:
    """Return the name of the address of a pod's debugger: see the runner's debugger.py."""
    return f"jobs/{job_id}/debuggers/{pod_uid}.json"


def attempt_outcome(job_id: str, attempt: int | str, host: int = 0) -> str:
    return f"{_attempt(job_id, attempt, host)}/outcome"


def log(job_id: str, attempt: int, sequence: int, host: int = 0) -> str:
    return f"{_attempt(job_id, attempt, host)}/log/{sequence:08d}"


def times(job_id: str, attempt: int, sequence: int) -> str:
    """Return the name of a note of when the phases of an attempt began, the last of which counts."""
    return f"{_attempt(job_id, attempt, 0)}/times/{sequence:08d}.json"


def _attempt(job_id: str, attempt: int | str, host: int) -> str:
    """Return the prefix of the objects of a host's n-th pod; `*` for any in a pattern."""
    return f"jobs/{job_id}/attempts/{attempt}" + (f"/hosts/{host}" if host else "")


def rendezvous(job_id: str, generation: int, name: str) -> str:
    """Return the name of a message between the hosts of a slice: see the runner's rendezvous.py."""
    return f"jobs/{job_id}/gang/{generation}/{name}"


def still(job_id: str, generation: int, host: int) -> str:
    """Return the name of the note whether a host of a slice is still: see the runner's hang.py."""
    return rendezvous(job_id, generation, f"{host}/still.json")


def choice(job_id: str, choice: int) -> str:
    """Return the name of the decision whether a job has `started` on an accelerator, or has `passed` it.

    The first writer decides. Only after `passed` may there be a pod for the next accelerator.
    """
    return f"jobs/{job_id}/choices/{choice}"


def cancel(job_id: str) -> str:
    return f"jobs/{job_id}/cancelled"


def input_id(group_id: str, index: int) -> str:
    """Return the job id of one input of a batch: a function of the batch, so that attaching needs no list."""
    return f"{group_id}-{index}"


def batch(group_id: str, name: str) -> str:
    """Return the name of an object that a batch's inputs share: `manifest.json`, `finished.json`, ..."""
    return f"batches/{group_id}/{name}"


def batch_payload(group_id: str, sha256: str) -> str:
    """Return the name of the payload without arguments; its header says where those of each input lie."""
    return batch(group_id, f"payload-{sha256}")


def of_round(group_id: str, number: int, name: str) -> str:
    """Return the name of an object of a round of a map on workers; the first round's are the batch's own."""
    return batch(group_id, f"rounds/{number}/{name}" if number else name)


def rounds(group_id: str) -> str:
    """Return the prefix of all rounds of a map but the first."""
    return batch(group_id, "rounds/")


def finished(group_id: str, round_number: int = 0) -> str:
    """Return the name of the object that ends submission and lists the inputs that were never launched."""
    return of_round(group_id, round_number, "finished.json")


def stop(group_id: str, round_number: int = 0) -> str:
    """Return the name of the object that lets no further input of a batch, or of a map's round, start."""
    return of_round(group_id, round_number, "stopped")


def chunk_cancel(group_id: str, key_id: str) -> str:
    """Return the name of the object that lets no pod of one Job of a batch run its input.

    It names the Job by its key's id, so that a later Job of the same inputs runs them.
    """
    return batch(group_id, f"cancelled-{digest(key_id.encode())[:16]}")


def block_claims(group_id: str, round_number: int = 0) -> str:
    """Return the prefix of the objects by which lanes of a map take blocks of inputs: see lane.py."""
    return of_round(group_id, round_number, "blocks/")


def block_claim(group_id: str, first: int, round_number: int = 0) -> str:
    """Return the name of the object by which a lane takes the block that begins with an input."""
    return f"{block_claims(group_id, round_number)}{first:08d}{CLAIM_END}"


CLAIM_END, SEGMENT_END = ".claim", ".outcomes"
"""Suffixes of what pods of lanes create below `batches/`, and of no other object there (`provision.iam`)."""


def segments(group_id: str, round_number: int = 0) -> str:
    """Return the prefix of the outcomes that lanes of a map have stored, many in an object."""
    return of_round(group_id, round_number, "outcomes/")


def outcome_segment(group_id: str, first: int, part: int, round_number: int = 0) -> str:
    """Return the name of the part number `part` of the outcomes of the block that begins with an input."""
    return f"{segments(group_id, round_number)}{first:08d}-{part:06d}{SEGMENT_END}"


def within(name: str, start: int, end: int) -> str:
    """Return what names the bytes of an object from `start` up to `end`: an outcome in a segment."""
    return f"{name}#{start}-{end}"


def span_of(place: str) -> tuple[str, int, int] | None:
    """Return object, start and end of a place that `within` names; None for the name of a whole object."""
    name, _, span = place.partition("#")
    start, _, end = span.partition("-")
    if not (start.isdecimal() and end.isdecimal()):
        return None
    return name, int(start), int(end)


def calls_prefix(worker_id: str) -> str:
    """Return the prefix of the objects that give a worker its calls, in their order."""
    return f"jobs/{worker_id}/calls/"


def call(worker_id: str, number: int) -> str:
    """Return the name of the object that a client, or the worker when it closes, creates for that number."""
    return f"{calls_prefix(worker_id)}{number:08d}.json"


def nudge(worker_id: str) -> str:
    """Return the name of the note that says on which port a worker can be told to look for a call."""
    return f"jobs/{worker_id}/nudge.json"


def end_call(job_id: str) -> str:
    """Return the name of the note by which a client tells a worker to end its call."""
    return f"jobs/{job_id}/end-call.json"


def outputs_prefix(job_id: str) -> str:
    return f"outputs/{job_id}"
