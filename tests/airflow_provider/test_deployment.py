"""What a worker's machine keeps of its Airflow, so that tasks need not ask for it."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread

import pytest

from airflow_provider.deployment import FRESH_SECONDS, Kept, make_name


@pytest.mark.promise("scale: No Variables")
def test_the_next_task_of_a_machine_knows_what_one_has_read(tmp_path: Path) -> None:
    file = tmp_path / "airflow" / "one"
    first = Kept(file)
    assert (first.name, first.places) == ("", [])
    first.keep(name="ours")
    first.keep(places=["a"])
    second = Kept(file)
    second.keep(places=["b", "a"])
    assert (Kept(file).name, Kept(file).places) == ("ours", ["a", "b"])
    assert Kept(tmp_path / "airflow" / "another").name == ""


@pytest.mark.promise("scale: No Variables")
def test_it_is_asked_again_however_often_it_was_used(tmp_path: Path) -> None:
    now = [1000.0]
    Kept(tmp_path / "one", lambda: now[0]).keep(name="ours")
    now[0] += FRESH_SECONDS - 1
    Kept(tmp_path / "one", lambda: now[0]).keep(places=["a"])
    now[0] += 2
    assert Kept(tmp_path / "one", lambda: now[0]).name == ""


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"since": 0, "name": 1, "places": []}', "\udcff"])
def test_a_broken_file_counts_as_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "one"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert Kept(file, lambda: 1.0).name == ""


def test_a_machine_that_keeps_nothing_goes_on(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file")
    kept = Kept(tmp_path / "folder" / "one")
    kept.keep(name="ours")
    assert kept.name == "ours"


def test_two_workers_that_make_a_name_have_one() -> None:
    """Both have found none; each waits until the other has written too."""
    variable: list[str] = []
    both_have_written = Barrier(2, timeout=20)
    found: list[str | None] = []

    def work() -> None:
        found.append(make_name(lambda: variable[-1], variable.append, lambda _: both_have_written.wait()))

    workers = [Thread(target=work) for _ in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert len(set(variable)) == 2
    assert found == [variable[-1]] * 2
