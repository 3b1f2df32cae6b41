"""Logs of all hosts of a slice: each line with its host, while it runs and afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider.task_logs import LogTail
from airflow_provider.ui.detail import tail
from kinetic_core._runner import object_names
from kinetic_core.errors import ClusterError, ClusterUnreachable, StoreError
from kinetic_core.jobs.logs import StoredLog, follow_log, last_lines, read_log
from kinetic_core.store.protocol import ObjectInfo
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.kubernetes.manifests import reference

SLICE = reference(accelerator="tpu-v5p-8")
ALONE = reference(accelerator="cpu")


class Metered(MemoryObjectStore):
    """A store that counts the objects it has listed."""

    listed = 0

    def list(self, prefix: str, pattern: str = "", since: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, pattern, since):
            self.listed += 1
            yield info

    def add(self, first: int, *chunks: bytes) -> None:
        """Store chunks of the log of ALONE, numbered from `first` on."""
        for number, chunk in enumerate(chunks, first):
            self.create_if_absent(object_names.log(ALONE.job_id, 0, number), chunk)

    def count(self, operation: str) -> int:
        return sum(each == operation for each, _ in self.requests)


class Containers:
    """Logs that grow by one piece of a host with every turn."""

    def __init__(self, *pieces: tuple[int, int, bytes]) -> None:
        self.store = MemoryObjectStore()
        self._coming = list(pieces)
        self.logs: dict[tuple[int, int], bytes] = {}

    def log(
        self, _namespace: str, _job_id: str, attempt: int, offset: int, host: int = 0, size: int = -1
    ) -> bytes | None:
        text = self.logs.get((attempt, host))
        return None if text is None else text[offset:][: None if size < 0 else size]

    def turn(self, _seconds: float) -> None:
        attempt, host, piece = self._coming.pop(0)
        self.logs[attempt, host] = self.logs.get((attempt, host), b"") + piece

    def ended(self) -> bool:
        return not self._coming


def followed(*pieces: tuple[int, int, bytes]) -> list[str]:
    containers: Any = Containers(*pieces)
    return "".join(follow_log(containers, SLICE, containers.ended, containers.turn)).splitlines()


@pytest.mark.promise("batches: All hosts' logs with the rank before each line")
def test_lines_of_hosts_are_never_mixed() -> None:
    lines = followed((0, 0, b"one "), (0, 1, b"two\n"), (0, 0, b"three\n"), (1, 1, b"four"), (0, 0, b"end"))
    assert lines == ["[host 1] two", "[host 0] one three", "[host 1] four", "[host 0] end"]


def test_what_the_runners_kept_is_the_log_of_every_host() -> None:
    containers: Any = Containers()
    for host in (0, 1):
        for attempt in (0, 1):
            name = object_names.log(SLICE.job_id, attempt, 0, host)
            containers.store.create_if_absent(name, f"attempt {attempt}".encode())
    assert read_log(containers, SLICE, 1).splitlines() == [
        "[host 0] attempt 0",
        "[host 1] attempt 0",
        "[host 0] attempt 1",
        "[host 1] attempt 1",
    ]
    assert read_log(containers, SLICE, 0, host=1) == "attempt 0"
    assert last_lines(containers, SLICE, 1) == ("[host 0] attempt 1", "[host 1] attempt 1")


def test_a_tasks_log_has_the_lines_of_all_hosts_once() -> None:
    containers: Any = Containers((0, 0, b"from 0\n"), (0, 1, b"from 1\n"), (0, 0, b"end of 0"))
    tail = LogTail(containers, SLICE)
    seen = []
    while not containers.ended():
        containers.turn(0)
        seen += tail.live(10)
    assert seen == ["[host 0] from 0"]
    assert tail.rest(0) == ["[host 0] end of 0", "[host 1] from 1"]


@pytest.mark.attack
def test_following_a_stored_log_reads_each_chunk_once() -> None:
    """The requests, and what they list, grow with the log as its size does."""
    containers: Any = Containers()
    store = containers.store = Metered()
    lines = [f"line {number}\n" for number in range(500)]
    store.add(0, *map(str.encode, lines))
    followed = follow_log(containers, ALONE, lambda: True)
    assert [next(followed) for _ in range(20)] == lines[:20]
    assert store.listed <= 21, "what is not read yet is not listed"
    assert "".join(followed) == "".join(lines[20:])
    assert store.count("read") == 500
    assert store.count("list") < 10
    assert store.listed < 510


def test_a_stored_log_goes_on_where_the_containers_ended() -> None:
    store = Metered()
    store.add(0, b"one\n", b"", b"two\n", b"three\n")
    for offset in range(15):
        found = StoredLog(store, ALONE, 0, offset=offset).pieces()
        assert b"".join(found) == b"one\ntwo\nthree\n"[offset:]


def test_of_a_stored_log_that_grows_the_new_part_is_listed() -> None:
    store = Metered()
    store.add(0, b"one\n", b"two\n")
    log = StoredLog(store, ALONE, 0, offset=10)
    assert list(log.pieces()) == []
    store.add(2, b"three\n", b"four\n")
    assert list(log.pieces()) == [b"ree\n", b"four\n"]
    store.add(4, b"five\n")
    store.listed = 0
    assert list(log.pieces()) == [b"five\n"]
    assert list(log.pieces()) == []
    assert store.listed == 3


@pytest.mark.attack
@pytest.mark.parametrize("chunk", [b"", b"\n"])
def test_of_a_planted_log_few_chunks_are_read(chunk: bytes) -> None:
    """Neither the evidence of a failure nor the page takes more requests for more chunks, empty or not."""
    containers: Any = Containers()
    store = containers.store = Metered()
    store.add(0, b"before\n", *[chunk] * 1000)
    for read in (last_lines, tail):
        store.requests.clear()
        found = read(containers, ALONE, 0)
        assert list(found) == (["before"] if not chunk else [""] * len(found))
        assert store.count("list") == 1
        assert store.count("read") <= 200


@pytest.mark.attack
def test_no_terminal_obeys_the_evidence_of_a_failure() -> None:
    containers: Any = Containers()
    store = containers.store = Metered()
    store.add(0, b"\x1b]52;c;ZXZpbA==\x07\x1b[2J planted\n\ta table\n")
    assert last_lines(containers, ALONE, 0) == (r"\x1b]52;c;ZXZpbA==\x07\x1b[2J planted", "\ta table")


@pytest.mark.attack
def test_of_a_planted_log_only_the_end_is_read() -> None:
    """The evidence of a failure costs its reader no more time, however large somebody has made the log."""

    class Endless(MemoryObjectStore):
        read_bytes = 0

        def list(self, prefix: str, pattern: str = "", since: str = "") -> Iterator[ObjectInfo]:
            for number in range(3):
                yield ObjectInfo(f"{prefix}{number}", 1 << 40, 0.0)

        def read_range(self, name: str, offset: int, size: int) -> bytes:
            found = (name[-1] * 1023 + "\n").encode() * (min(size, (1 << 40) - offset) >> 10)
            self.read_bytes += len(found)
            return found

    containers: Any = Containers()
    containers.store = Endless()
    assert last_lines(containers, reference(accelerator="cpu"), 0) == ("2" * 1023,) * 20
    assert containers.store.read_bytes <= 8 << 20


def alone(containers: Any, attempt: int = 0) -> list[str]:
    """Lines of a job with one host that has reached an attempt, by a clock that every pause moves on."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if not containers.ended():
            containers.turn(seconds)

    found = follow_log(containers, ALONE, containers.ended, sleep, lambda: attempt, lambda: now[0])
    return "".join(found).splitlines()


def test_attempts_that_printed_nothing_hide_no_later_one() -> None:
    """Their pods died before the first line, or were never started."""
    pieces = [(0, 0, b"one\n"), (3, 0, b"four\n"), (3, 0, b"five\n")]
    assert alone(Containers(*pieces), attempt=3) == ["one", "four", "five"]


class Away(Containers):
    """Containers whose logs cannot be read at these turns."""

    def __init__(self, *pieces: tuple[int, int, bytes], errors: dict[int, Exception]) -> None:
        super().__init__(*pieces)
        self._errors, self._turns = errors, 0

    def turn(self, seconds: float) -> None:
        super().turn(seconds)
        self._turns += 1

    def log(self, *where: Any, **more: Any) -> bytes | None:
        if self._turns in self._errors:
            error = self._errors[self._turns]
            if self.ended():
                del self._errors[self._turns]
            raise error
        return super().log(*where, **more)


PIECES = [(0, 0, b"one\n"), (0, 0, b"two\n"), (0, 0, b"three\n"), (0, 0, b"four\n")]


def test_a_followed_log_goes_on_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    errors: dict[int, Exception] = {
        2: ClusterUnreachable("no answer"),
        3: StoreError("away"),
        4: ClusterError("busy", 503),
    }
    assert alone(Away(*PIECES, errors=errors)) == ["one", "two", "three", "four"]
    assert caplog.text.count("cannot be read now, trying again: no answer") == 1


def test_a_log_that_stays_away_after_the_end_is_an_error() -> None:
    containers: Any = Containers()
    containers.store.fault = unavailable
    with pytest.raises(StoreError, match="away"):
        alone(containers)


def unavailable(_operation: str, _name: str) -> None:
    raise StoreError("away")


def test_a_log_that_nobody_may_read_is_an_error() -> None:
    with pytest.raises(ClusterError, match="no rights"):
        alone(Away(*PIECES, errors={2: ClusterError("no rights", 403)}))


def test_what_a_store_could_not_give_is_read_later() -> None:
    store = Metered()
    store.add(0, b"one\n", b"two\n", b"three\n")
    log, faults = StoredLog(store, ALONE, 0), [StoreError("away")]

    def fault(operation: str, name: str) -> None:
        if operation == "read" and name.endswith("00001") and faults:
            raise faults.pop()

    store.fault = fault
    read: list[bytes] = []
    with pytest.raises(StoreError):
        read.extend(log.pieces())
    assert b"".join([*read, *log.pieces()]).endswith(b"two\nthree\n")


def test_the_rest_of_a_gone_pods_log_comes_before_the_next() -> None:
    """The first attempt's pod is gone before all of its lines were read: its runner has stored them."""
    containers: Any = Containers((0, 0, b"one\n"), (1, 0, b"three\n"), (1, 0, b"four\n"))
    containers.store = Metered()
    containers.store.add(0, b"one\n", b"two\n")
    turn = containers.turn

    def goes(seconds: float) -> None:
        turn(seconds)
        if (1, 0) in containers.logs:
            containers.logs.pop((0, 0), None)

    containers.turn = goes
    assert alone(containers, attempt=1) == ["one", "two", "three", "four"]
