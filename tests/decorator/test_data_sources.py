"""Data of other places in jobs of this machine."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import Data
from kinetic_core.errors import JobMisconfigured
from kinetic_core.store.gcs import GcsObjectStore
from tests.hugging_face import FakeHub

pytestmark = pytest.mark.usefixtures("local_jobs")


@kinetic_core.run(accelerator="cpu")
def read(*paths: str) -> list[Any]:
    def seen(path: Path) -> Any:
        return {child.name: seen(child) for child in path.iterdir()} if path.is_dir() else path.read_text()

    return [seen(Path(path)) for path in paths]


def test_a_dataset_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeHub({"acme/set": {"main": {"train.csv": b"a", "test.csv": b"b", "load.py": b"c"}}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        seen = read(Data("hf://acme/set?plain=true"), Data("hf://acme/set?split=test&plain=true"))
        assert seen == [{"train.csv": "a", "test.csv": "b"}, {"test.csv": "b"}]
        trusted = Data("hf://acme/set?plain=true", hf_trust_remote_code=True)
        assert read(trusted) == [{"train.csv": "a", "test.csv": "b", "load.py": "c"}]
        with pytest.raises(JobMisconfigured, match="no split 'dev'"):
            read(Data("hf://acme/set?split=dev&plain=true"))
        with pytest.raises(JobMisconfigured, match=r"hf://acme/set .*no package 'datasets'"):
            read(Data("hf://acme/set"))


def test_what_would_be_mounted_on_a_cluster_is_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a").write_text("A")
    assert read(Data(str(tmp_path / "set"), fuse=True), Data(str(tmp_path / "set"))) == [{"a": "A"}] * 2
    assert "is copied, not mounted" in caplog.text


def test_a_cache_volume_is_a_directory_that_local_jobs_share(local_jobs: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a").write_text("A")

    @kinetic_core.run(accelerator="cpu", cache_volume="shared")
    def where(path: str) -> str:
        return path

    first, second = (where(Data(str(tmp_path / "set"))) for _ in range(2))
    assert first == second
    assert Path(first).is_relative_to(local_jobs)
    assert (Path(first) / "a").read_text() == "A"


@pytest.mark.promise("data: Local file and directory, nested in arguments, `volumes=`")
def test_data_in_odd_places_becomes_paths(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A")
    data = Data(str(tmp_path / "a"))

    @kinetic_core.run(accelerator="cpu")
    def inside(args: Any, *, keyword: Any) -> list[Any]:
        (one,) = args[0]
        (key,) = args[1]
        return [type(one).__name__, Path(key).read_text(), keyword.path == one, Path(captured).read_text()]

    class Holder:
        path = data

    captured = data
    holder = Holder()
    holder.path = data
    assert inside([{data}, {data: 1}], keyword=holder) == ["str", "A", True, "A"]


@pytest.mark.cluster
def test_a_bucket(emulator: str) -> None:
    store = GcsObjectStore.at(f"test-bucket/theirs-{secrets.token_hex(4)}")
    store.create_if_absent("set/a.txt", b"A")
    try:
        assert read(Data(f"{store.uri}/set/"), Data(f"{store.uri}/set/a.txt")) == [{"a.txt": "A"}, "A"]
    finally:
        store.delete("set/a.txt")
