"""What Cloud Storage's client does when the service stumbles: it is not noticed, or clearly told."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_core.errors import ConfigurationError, ObjectNotFound, StoreError
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing.fault_proxy import FaultProxy
from kinetic_core.testing.faulty_server import Faults

pytestmark = pytest.mark.cluster
LARGE = secrets.token_bytes(1 << 20) * 20


@pytest.fixture
def store(gcs: FaultProxy) -> Iterator[GcsObjectStore]:
    name = f"faults-{secrets.token_hex(4)}"
    store = GcsObjectStore("test-bucket", name, patience=20.0, silence=1.0)
    for number in range(3):
        store.create_if_absent(f"old/{number}", b"content" * 1000)
    yield store
    unmet = gcs.faults.unmet
    gcs.faults.clear()
    store.delete_all("old/")
    for info in list(store.list("")):
        store.delete(info.name)
    assert unmet == ()


def create(store: GcsObjectStore) -> None:
    store.create_if_absent("new", b"x")
    assert store.read("new") == b"x"


def read(store: GcsObjectStore) -> None:
    assert store.read("old/0") == b"content" * 1000


def stream(store: GcsObjectStore) -> None:
    with store.open("old/0") as file:
        assert file.read(7) == b"content"
        assert file.read() == b"content" * 999


def find(store: GcsObjectStore) -> None:
    found = store.find("old/1")
    assert found is not None
    assert found.size == 7000


def list_all(store: GcsObjectStore) -> None:
    assert [info.name for info in store.list("old/")] == ["old/0", "old/1", "old/2"]


def delete(store: GcsObjectStore) -> None:
    store.delete("old/0")
    assert store.find("old/0") is None


def delete_all(store: GcsObjectStore) -> None:
    assert store.delete_all("old/") == 3
    assert list(store.list("")) == []


def missing(store: GcsObjectStore) -> None:
    with pytest.raises(ObjectNotFound, match="nothing"):
        store.read("nothing")
    assert store.find("nothing") is None


OPERATIONS = [create, read, missing, stream, find, list_all, delete, delete_all]
FAULTS: dict[str, Callable[[Faults], None]] = {
    "408": lambda faults: faults.answer(".", 408, times=2),
    "429": lambda faults: faults.answer(".", 429, headers={"Retry-After": "1"}, times=2),
    "500": lambda faults: faults.answer(".", 500, times=2),
    "503": lambda faults: faults.answer(".", 503, times=3),
    "dropped": lambda faults: faults.drop(".", times=2),
    "lost": lambda faults: faults.lose_reply(".", times=2),
    "cut": lambda faults: faults.cut_reply(".", 0, times=2),
    "cut-later": lambda faults: faults.cut_reply("(GET|POST)", 5, times=2),
    "silent": lambda faults: faults.silence(".", 30, times=1),
    "delayed": lambda faults: faults.delay(".", 0.3, times=1),
}


@pytest.mark.promise("gke: Retries on 408, 429, 5xx and dropped connections")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_no_fault_is_noticed(
    gcs: FaultProxy, store: GcsObjectStore, operation: Callable[[GcsObjectStore], None], fault: str
) -> None:
    if operation is delete and fault == "cut-later":
        pytest.skip("the answer to a delete has no body")
    FAULTS[fault](gcs.faults)
    operation(store)


@pytest.mark.parametrize("fault", ["503", "lost", "cut"])
def test_every_page_of_a_listing_may_stumble(gcs: FaultProxy, store: GcsObjectStore, fault: str) -> None:
    with_pages = ".*pageToken"
    names = [f"many/{number:04d}" for number in range(1001)]
    _in_parallel(lambda name: store.create_if_absent(name, b""), names)
    {
        "503": lambda: gcs.faults.answer(with_pages, 503),
        "lost": lambda: gcs.faults.lose_reply(with_pages),
        "cut": lambda: gcs.faults.cut_reply(with_pages, 10),
    }[fault]()
    assert [info.name for info in store.list("many/")] == names
    assert store.delete_all("many/") == 1001


def test_a_write_with_a_lost_answer_knows_its_own(gcs: FaultProxy, store: GcsObjectStore) -> None:
    gcs.faults.lose_reply("POST .*upload")
    store.create_if_absent("once", b"mine")
    assert gcs.faults.count("POST .*upload.*") == 3 + 2
    gcs.faults.lose_reply("POST .*upload")
    assert not store.create_if_absent("once", b"another's")
    assert store.read("once") == b"mine"


def test_a_name_that_is_free_again_is_written_to(gcs: FaultProxy, store: GcsObjectStore) -> None:
    gcs.faults.answer("POST .*upload", 412, times=2)
    create(store)
    gcs.faults.answer("POST .*upload", 412, times=3)
    assert not store.create_if_absent("other", b"x")


@pytest.mark.promise("gke: Create-only writes, generation preconditions")
def test_of_two_writers_whose_answers_are_lost_one_wins(gcs: FaultProxy, store: GcsObjectStore) -> None:
    gcs.faults.lose_reply("POST .*upload", times=8)
    won: list[bytes] = []

    def write(content: bytes) -> None:
        if store.create_if_absent("prize", content):
            won.append(content)

    _in_parallel(write, [str(number).encode() for number in range(8)])
    assert won == [store.read("prize")]


@pytest.mark.promise("gke: Resumable uploads, checksums")
@pytest.mark.parametrize(
    "fault",
    [
        lambda faults: faults.answer("POST .*resumable", 503, times=2),
        lambda faults: faults.lose_reply("POST .*resumable"),
        lambda faults: faults.answer("PUT .*upload_id", 503),
        lambda faults: faults.drop("PUT .*upload_id"),
        lambda faults: faults.lose_reply("PUT .*upload_id"),
        lambda faults: faults.cut_request("PUT .*upload_id", 3 << 20),
        lambda faults: faults.cut_request("PUT .*upload_id", (3 << 20) + 5),
        lambda faults: faults.silence("PUT .*upload_id", 30),
    ],
    ids=["503", "lost", "piece-503", "piece-dropped", "piece-lost", "piece-cut", "piece-odd", "piece-silent"],
)
@pytest.mark.parametrize("source", ["bytes", "file"])
def test_a_large_upload_goes_on(
    gcs: FaultProxy, store: GcsObjectStore, tmp_path: Path, fault: Callable[[Faults], None], source: str
) -> None:
    fault(gcs.faults)
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    store.create_if_absent("large", path if source == "file" else LARGE)
    assert store.read("large") == LARGE
    assert not store.create_if_absent("large", LARGE)


def test_a_large_download_that_breaks_off_comes_whole(gcs: FaultProxy, store: GcsObjectStore) -> None:
    store.create_if_absent("large", LARGE)
    gcs.faults.cut_reply("GET .*alt=media", 7 << 20, times=2)
    assert store.read("large") == LARGE
    gcs.faults.cut_reply("GET .*alt=media", 3 << 20, times=2)
    with store.open("large") as file:
        file.seek(1 << 20)
        assert file.read() == LARGE[1 << 20 :]


@pytest.mark.promise("gke: Resumable uploads, checksums")
def test_what_arrives_damaged_is_read_again_and_never_believed(
    gcs: FaultProxy, store: GcsObjectStore
) -> None:
    sound = base64.b64encode(hashlib.md5(b"content" * 1000).digest()).decode()
    damaged = {"x-goog-hash": f"md5={sound}, crc32c=AAAAAA=="}
    gcs.faults.answer("GET .*alt=media", 200, body=b"damaged", headers=damaged, times=2)
    assert store.read("old/0") == b"content" * 1000
    gcs.faults.answer("GET .*alt=media", 200, body=b"damaged", headers=damaged, times=None)
    with pytest.raises(StoreError, match=r"gs://.*/old/0 cannot be reached: .*checksum"):
        store.read("old/0")


def test_a_service_that_stays_away_is_told_after_the_patience(gcs: FaultProxy) -> None:
    gcs.faults.answer(".", 503, body=b"away", times=None)
    impatient = GcsObjectStore("test-bucket", "x", patience=0.5)
    for operation in (create, read, stream, find, list_all, delete, delete_all):
        with pytest.raises(StoreError, match=r"gs://test-bucket/x/\S+ cannot be reached: HTTP 503"):
            operation(impatient)
    gcs.faults.clear()
    gcs.faults.drop(".", times=None)
    with pytest.raises(StoreError, match="gs://test-bucket/x/old/0 cannot be reached"):
        impatient.read("old/0")


def test_every_operation_names_a_missing_bucket(gcs: FaultProxy) -> None:
    nowhere = GcsObjectStore("no-such-bucket")
    for operation in OPERATIONS:
        with pytest.raises(
            ConfigurationError, match=r"the bucket 'no-such-bucket' does not exist.*KINETIC_BUCKET"
        ):
            operation(nowhere)


def test_a_bucket_one_may_only_read_is_named(emulator: str, gcs: FaultProxy, store: GcsObjectStore) -> None:
    name = f"read-only-{secrets.token_hex(4)}"
    _set_mode(emulator, name, "read-only")
    closed = GcsObjectStore(name)
    for operation in (create, delete):
        with pytest.raises(StoreError, match=rf"in gs://{name}: not permitted .*roles/storage.objectUser"):
            operation(closed)


@pytest.mark.attack
def test_an_object_that_many_deletes_have_left_is_named(emulator: str, gcs: FaultProxy) -> None:
    name = f"kept-{secrets.token_hex(4)}"
    _post(f"{emulator}/storage/v1/b?project=test", {"name": name})
    kept = GcsObjectStore(name)
    for number in range(2):
        kept.create_if_absent(f"old/{number}", b"x")
    seen = list(kept.list("old/"))
    _set_mode(emulator, name, "read-only")
    with pytest.raises(StoreError, match=rf"cannot delete old/0 in gs://{name}: not permitted"):
        kept.delete_seen(seen)
    _set_mode(emulator, name, "normal")
    kept.delete("old/1")
    kept.create_if_absent("old/1", b"new")
    gcs.faults.answer("POST /batch", 200, body=b"no part has an answer")
    kept.delete_seen(seen)
    assert [info.name for info in kept.list("")] == ["old/1"]
    kept.delete("old/1")


@pytest.mark.promise("gke: Create-only writes, generation preconditions")
def test_an_object_that_is_replaced_is_not_mixed_into_its_stream(store: GcsObjectStore) -> None:
    with store.open("old/0") as file:
        store.delete("old/0")
        store.create_if_absent("old/0", b"another")
        with pytest.raises(ObjectNotFound):
            file.read()


def _in_parallel(work: Callable[..., None], items: list[str] | list[bytes]) -> None:
    waiting = iter(items)
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                item = next(waiting, None)
            if item is None:
                return
            work(item)

    threads = [threading.Thread(target=run) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _set_mode(emulator: str, bucket: str, mode: str) -> None:
    _post(f"{emulator}/emulator/bucket", {"name": bucket, "mode": mode})


def _post(url: str, facts: dict[str, str]) -> None:
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(facts).encode(), kind, method="POST")
    urllib.request.urlopen(request).close()
