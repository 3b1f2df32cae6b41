"""One build for one image, however many clients on however many machines ask for it at once.

Who creates `images/{tag}/{n}/claim` builds; everybody else follows. The build's id goes to
`images/{tag}/{n}/build`, create-only: a claim whose builder died gets an empty one from somebody who has
waited long enough, and a builder that finds its claim closed so cancels its build.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from kinetic_core.errors import ObjectNotFound
from kinetic_core.images.cloud_build import LIVE, CloudBuild
from kinetic_core.images.registry import Json, Unanswered
from kinetic_core.store.documents import read_document
from kinetic_core.store.protocol import ObjectStore

_CLAIM_SECONDS = 150.0
"""How long a claim may be without a build: starting one takes a minute when the service is ill."""
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Order:
    """What to build: its name, how to know that it is there, and the build of it (made only if needed)."""

    tag: str
    present: Callable[[], str | None]
    build: Callable[[str], Json]
    """From a mark that is unique, what to ask Cloud Build for."""


def build_once(order: Order, builds: CloudBuild, store: ObjectStore, say: Callable[[str], None]) -> str:
    """The digest of the image, built by this client or another one.

    Raises ImageError if the build fails that this client started or waited for; the next call tries again.
    """
    while True:
        number = _latest(store, order.tag)
        if number is not None:
            build_id = _build_of(order.tag, number, builds, store)
            build = builds.get(build_id) if build_id else None
            if build_id and build is not None and build["status"] in LIVE:
                say(f"somebody builds this image already: {builds.page(build_id)}")
                return builds.follow(build_id, say)
        if (digest := order.present()) is not None:  # finished while we looked
            return digest
        claimed = _claim(store, order.tag, 0 if number is None else number + 1)
        if claimed is not None and (digest := _build(order, claimed, builds, store, say)) is not None:
            return digest


def _latest(store: ObjectStore, tag: str) -> int | None:
    numbers = [int(info.name.split("/")[2]) for info in store.list(f"images/{tag}/")]
    return max(numbers, default=None)


def _name(tag: str, number: int, what: str) -> str:
    return f"images/{tag}/{number:06d}/{what}"


def _claim(store: ObjectStore, tag: str, number: int) -> tuple[int, str] | None:
    """Number and mark of a claim that is ours; None if another client was quicker."""
    mark = f"kinetic-{secrets.token_hex(8)}"
    claim = json.dumps({"mark": mark}).encode()
    return (number, mark) if store.create_if_absent(_name(tag, number, "claim"), claim) else None


def source_object(tag: str, mark: str) -> str:
    """The source of a build. It is kept if the build fails."""
    return f"source/{tag}-{mark}.tar.gz"


def _build(
    order: Order, claimed: tuple[int, str], builds: CloudBuild, store: ObjectStore, say: Callable[[str], None]
) -> str | None:
    """Start the build and follow it; None if it took so long to start that another client has taken over."""
    number, mark = claimed
    name = _name(order.tag, number, "build")
    try:
        build_id = builds.start(order.build(mark), mark)
    except BaseException:
        _close(store, name, "")
        raise
    if not _close(store, name, build_id):
        builds.cancel(build_id)
        return None
    say(f"building the image: {builds.page(build_id)}")
    return builds.follow(build_id, say, is_own=True)


def _close(store: ObjectStore, name: str, build_id: str) -> bool:
    """Write down which build a claim led to, "" for none; False if somebody has."""
    return store.create_if_absent(name, build_id.encode())


def _build_of(tag: str, number: int, builds: CloudBuild, store: ObjectStore) -> str:
    """The build a claim led to, "" for none; waits for a builder that is about to start it."""
    name = _name(tag, number, "build")
    give_up = builds.api.clock() + _CLAIM_SECONDS
    while True:
        try:
            return store.read(name).decode()
        except ObjectNotFound:
            if builds.api.clock() >= give_up:
                break
        builds.api.sleep(_POLL_SECONDS)
    orphan = _orphan(tag, number, builds, store)
    return orphan if _close(store, name, orphan) else store.read(name).decode()


def _orphan(tag: str, number: int, builds: CloudBuild, store: ObjectStore) -> str:
    """The build of a builder that died before it could write the id down, "" if it started none."""
    try:
        mark = read_document(store, _name(tag, number, "claim"), mark=str)["mark"]
        found = builds.find(mark)
    except (ObjectNotFound, Unanswered):
        return ""
    return str(found["id"]) if found else ""
