"""What the runner does when Cloud Storage stumbles: nobody notices, or it says what is wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kinetic_core._runner.gcs import PATIENCE, GcsStore, multipart
from kinetic_core._runner.store import MissingObject, StoreUnavailable, exists
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing.fault_proxy import FaultProxy
from kinetic_core.testing.faulty_server import Faults

pytestmark = pytest.mark.cluster
CONTENT = b"content" * 1000
LARGE = secrets.token_bytes(1 << 20) * 37


@pytest.fixture
def uri(gcs: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a test's objects are; one is there from the start."""
    monkeypatch.setenv("KINETIC_WORK_DIR", str(tmp_path))
    store = GcsObjectStore("test-bucket", f"runner-{secrets.token_hex(4)}")
    store.create_if_absent("old", CONTENT)
    yield store.uri
    unmet = gcs.faults.unmet
    gcs.faults.clear()
    for info in list(store.list("")):
        store.delete(info.name)
    assert unmet == ()


@pytest.fixture
def store(uri: str) -> Iterator[GcsStore]:
    store = GcsStore(uri, sleep=lambda _: None, silence=1.0, piece_bytes=16 << 20)
    yield store
    store.close()


@pytest.fixture
def patient(uri: str) -> Iterator[GcsStore]:
    """Takes no piece for lost because this machine is busy."""
    store = GcsStore(uri, sleep=lambda _: None, silence=60.0, piece_bytes=16 << 20)
    yield store
    store.close()


def read(store: GcsStore) -> None:
    assert store.read("old") == CONTENT


def fetch(store: GcsStore) -> None:
    assert Path(store.fetch("old", len(CONTENT))).read_bytes() == CONTENT


def create(store: GcsStore) -> None:
    assert store.create_if_absent("new", b"mine") is True
    assert store.create_if_absent("new", b"another's") is False
    assert store.read("new") == b"mine"


def refused(store: GcsStore) -> None:
    assert store.create_if_absent("old", b"another's") is False
    assert store.read("old") == CONTENT


def create_large(store: GcsStore) -> None:
    assert store.create_if_absent("large", LARGE) is True
    assert store.read("large") == LARGE


def missing(store: GcsStore) -> None:
    with pytest.raises(MissingObject, match="cannot read nothing"):
        store.read("nothing")


OPERATIONS = [read, fetch, create, refused, create_large, missing]
FAULTS: dict[str, Callable[[Faults], None]] = {
    "408": lambda faults: faults.answer(".", 408, times=2),
    "429": lambda faults: faults.answer(".", 429, headers={"Retry-After": "1"}, times=2),
    "500": lambda faults: faults.answer(".", 500, times=2),
    "503": lambda faults: faults.answer(".", 503, times=3),
    "dropped": lambda faults: faults.drop(".", times=2),
    "lost": lambda faults: faults.lose_reply(".", times=2),
    "cut": lambda faults: faults.cut_reply(".", 0, times=2),
    "silent": lambda faults: faults.silence(".", 30),
    "delayed": lambda faults: faults.delay(".", 0.3),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_no_fault_is_noticed(
    gcs: FaultProxy, store: GcsStore, operation: Callable[[GcsStore], None], fault: str
) -> None:
    FAULTS[fault](gcs.faults)
    operation(store)


@pytest.mark.parametrize(
    "fault",
    [
        lambda faults: faults.lose_reply("POST .*resumable"),
        lambda faults: faults.answer("PUT .*upload_id", 503, skip=1),
        lambda faults: faults.drop("PUT .*upload_id", skip=1, times=2),
        lambda faults: faults.lose_reply("PUT .*upload_id", skip=1),
        lambda faults: faults.lose_reply("PUT .*upload_id", skip=2),
        lambda faults: faults.cut_request("PUT .*upload_id", (3 << 20) + 5, skip=1),
        lambda faults: faults.silence("PUT .*upload_id", 30),
        lambda faults: faults.answer("PUT .*upload_id", 410, skip=1),
    ],
    ids=["begin", "503", "dropped", "lost", "last-lost", "cut", "silent", "forgotten"],
)
def test_a_large_upload_goes_on_where_it_stopped(
    gcs: FaultProxy, store: GcsStore, fault: Callable[[Faults], None]
) -> None:
    fault(gcs.faults)
    assert store.create_if_absent("large", LARGE) is True
    assert store.read("large") == LARGE
    assert store.create_if_absent("large", b"another's") is False
    assert store.create_if_absent("large", LARGE) is False


def test_what_arrived_is_not_sent_again(gcs: FaultProxy, patient: GcsStore) -> None:
    gcs.faults.lose_reply("PUT .*upload_id", skip=1)
    assert patient.create_if_absent("large", LARGE)
    sent = [len(each.body) > 0 for each in gcs.faults.requests if each.line.startswith("PUT")]
    assert sent == [True, True, False, True]


def test_a_name_that_is_free_again_is_written_to(gcs: FaultProxy, store: GcsStore) -> None:
    gcs.faults.answer("POST .*upload", 412, times=2)
    create(store)
    gcs.faults.answer("POST .*upload", 412, times=3)
    assert store.create_if_absent("other", b"x") is False


def test_what_arrives_damaged_is_read_again(gcs: FaultProxy, store: GcsStore) -> None:
    sound = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    damaged = {"x-goog-hash": f"crc32c=AAAAAA==,md5={sound}"}
    gcs.faults.answer("GET", 200, body=b"damaged", headers=damaged, times=2)
    assert store.read("old") == CONTENT
    gcs.faults.answer("GET", 200, body=b"damaged", headers=damaged, times=2)
    assert Path(store.fetch("old", len(CONTENT))).read_bytes() == CONTENT


@pytest.mark.promise("gke: Resumable uploads, checksums")
def test_what_the_service_receives_damaged_is_refused(gcs: FaultProxy, store: GcsStore) -> None:
    path = f"/upload/storage/v1/b/test-bucket/o?uploadType=multipart&name={secrets.token_hex(4)}"
    facts = {"md5Hash": base64.b64encode(bytes(16)).decode()}
    with pytest.raises(StoreUnavailable, match=r"cannot store x in .*HTTP 400"):
        store.request("store", "x", "POST", path, *multipart(facts, b"x", "edge"))


def test_how_old_an_object_is_by_the_services_clock(store: GcsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_if_absent("fresh", b"x")
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 3600)
    assert -1 <= store.age("fresh") < 60
    with pytest.raises(MissingObject):
        store.age("nothing")


def test_a_full_disk_is_not_the_services_fault(gcs: FaultProxy, store: GcsStore, tmp_path: Path) -> None:
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched" / f"old.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        store.fetch("old", len(CONTENT))
    assert not isinstance(caught.value, StoreUnavailable)
    assert gcs.faults.count("GET .*alt=media") == 1


@pytest.mark.promise("gke: Retries on 408, 429, 5xx and dropped connections")
def test_it_waits_as_long_as_the_service_asks(gcs: FaultProxy, uri: str) -> None:
    waited: list[float] = []
    store = GcsStore(uri, sleep=waited.append)
    gcs.faults.answer("GET", 429, headers={"Retry-After": "17"})
    gcs.faults.answer("GET", 429, headers={"Retry-After": "3600"})
    read(store)
    store.close()
    assert waited == [17.0, 30.0]


def test_its_patience_ends_with_the_name_and_the_reason(gcs: FaultProxy, uri: str) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    store = GcsStore(uri, sleep=sleep, clock=lambda: now[0])
    gcs.faults.answer(".", 503, times=None)
    for operation in (
        store.read,
        partial(store.fetch, most=1),
        lambda name: store.create_if_absent(name, b""),
    ):
        now[0] = 0.0
        with pytest.raises(StoreUnavailable, match=rf"{uri}/x cannot be reached: HTTP 503"):
            operation("x")
        assert now[0] >= PATIENCE
    store.close()


def test_a_bucket_that_does_not_exist_is_named(gcs: FaultProxy, store: GcsStore) -> None:
    nowhere = GcsStore("gs://no-such-bucket/x")
    for operation in (
        nowhere.read,
        partial(nowhere.fetch, most=1),
        lambda name: nowhere.create_if_absent(name, b""),
    ):
        with pytest.raises(
            StoreUnavailable, match=r"the bucket 'no-such-bucket' does not exist.*KINETIC_BUCKET"
        ):
            operation("old")
    nowhere.close()


def test_a_bucket_one_may_only_read_is_named(emulator: str, store: GcsStore) -> None:
    name = f"read-only-{secrets.token_hex(4)}"
    body = json.dumps({"name": name, "mode": "read-only"}).encode()
    urllib.request.urlopen(f"{emulator}/emulator/bucket", body).close()
    closed = GcsStore(f"gs://{name}")
    for content in (b"x", LARGE):
        with pytest.raises(StoreUnavailable, match=rf"store x in gs://{name}: not permitted .*objectUser"):
            closed.create_if_absent("x", content)
    closed.close()


def test_who_is_in_a_hurry_is_not_kept(gcs: FaultProxy, uri: str) -> None:
    """Neither by an answer that does not come nor by one that asks to wait; afterwards it is patient."""
    waited: list[float] = []
    store = GcsStore(uri, sleep=waited.append, hurry=2.0)
    read(store)
    gcs.faults.silence("GET", 600, times=None)  # longer than a test may take
    with store.hurried(), pytest.raises(StoreUnavailable, match="old cannot be reached"):
        store.read("old")
    gcs.faults.clear()
    gcs.faults.answer("GET", 429, headers={"Retry-After": "17"})
    with store.hurried():
        read(store)
    gcs.faults.answer("GET", 429, headers={"Retry-After": "17"})
    read(store)
    store.close()
    assert waited[-2] <= 2.0
    assert waited[-1] == 17.0


def test_an_object_without_content_is_there(store: GcsStore) -> None:
    store.create_if_absent("empty", b"")
    assert [exists(store, name) for name in ("empty", "old", "none")] == [True, True, False]


@pytest.mark.attack
def test_a_missing_bucket_is_asked_for_and_not_guessed(store: GcsStore, gcs: FaultProxy) -> None:
    """Whatever words the service has: here those of a missing bucket for an object, and the reverse."""
    gcs.faults.answer("/o/", 404, body=b"The specified bucket does not exist.", times=2)
    for _ in range(2):
        with pytest.raises(MissingObject, match="there is no such object"):
            store.read("old")
    nowhere = GcsStore("gs://no-such-bucket", sleep=lambda _: None)
    gcs.faults.answer("/o", 404, body=b"No such object: old", times=2)
    with pytest.raises(StoreUnavailable, match="the bucket 'no-such-bucket' does not exist"):
        nowhere.read("old")


def test_a_bucket_that_has_answered_is_not_asked_for_again(store: GcsStore, gcs: FaultProxy) -> None:
    assert not exists(store, "none")
    gcs.faults.answer("maxResults", 500, times=None)
    assert not exists(store, "none")
    gcs.faults.clear()
