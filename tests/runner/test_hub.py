"""`hf://` data as a job gets it, from a stand-in of the hub."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kinetic_core._runner import wire
from kinetic_core._runner.data import DataFolder
from kinetic_core._runner.downloads import DamagedDownload
from kinetic_core._runner.hugging_face import HubData
from kinetic_core._runner.store import (
    DirectoryStore,
    MissingObject,
    SourceUnreachable,
    StoreUnavailable,
)
from tests.hugging_face import FakeHub
from tests.runner.attempts import Attempts

_LARGE = bytes(range(256)) * 20
_IMDB = {
    "main": {"README.md": b"# imdb", "plain_text/train.csv": b"a,b", "load.py": b"print()"},
    "refs/convert/parquet": {
        "plain_text/train/0000.parquet": _LARGE,
        "plain_text/train/0001.parquet": b"more",
        "plain_text/test/0000.parquet": b"t",
    },
}
_MANY = {
    "main": {
        "en/train-00000.csv": b"en",
        "fr/train-00000.csv": b"fr",
        "fr/test-00000.csv": b"ft",
        "fr/trainee.csv": b"no",
    }
}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with FakeHub({"imdb": _IMDB, "acme/many": _MANY, "code/only": {"main": {"a.py": b"x"}}}) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.endpoint)
        yield fake


@pytest.fixture
def folder(tmp_path):
    return DataFolder(str(tmp_path / "data"), DirectoryStore("file:///none", "/none"), shared=False)


def source(repo: str, **more):
    empty = {"revision": None, "config": None, "split": None, "code": False, "endpoint": "", "plain": True}
    return {"kind": "hub", "repo": repo, **empty, **more}


def contents(found: tuple[str, str | None]) -> dict[str, bytes]:
    root, file = found
    assert file is None
    return {
        str(path.relative_to(root)): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()
    }


def test_a_dataset_is_its_files_without_code(hub, folder):
    found = contents(folder.find(source("imdb")))
    assert found == {"README.md": b"# imdb", "plain_text/train.csv": b"a,b"}


@pytest.mark.promise("data: `hf://` against a stand-in of the hub; `hf_trust_remote_code`")
def test_code_comes_along_if_it_is_trusted(hub, folder):
    assert contents(folder.find(source("imdb", code=True)))["load.py"] == b"print()"
    with pytest.raises(PermissionError, match="hf_trust_remote_code"):
        folder.find(source("code/only"))


def test_a_split_is_the_parquet_files_of_it(hub, folder):
    found = contents(folder.find(source("imdb", split="train")))
    assert found == {"plain_text/train/0000.parquet": _LARGE, "plain_text/train/0001.parquet": b"more"}


def test_without_converted_files_a_split_is_found_by_name(hub, folder):
    found = contents(folder.find(source("acme/many", split="train", config="fr")))
    assert found == {"fr/train-00000.csv": b"fr"}


def test_what_a_dataset_does_not_have_is_named(hub, folder):
    for wrong, why in (
        ({"split": "dev"}, "no split 'dev'"),
        ({"config": "xx"}, "no configuration 'xx'"),
        ({"revision": "v9"}, "no dataset 'imdb' with revision 'v9'"),
    ):
        with pytest.raises(MissingObject, match=why):
            folder.find(source("imdb", **wrong))
    with pytest.raises(MissingObject, match="no dataset 'nobody/nothing'"):
        folder.find(source("nobody/nothing"))


def test_several_configurations_must_be_chosen_from(hub, folder):
    hub.datasets = {"many": {"main": {"en/a/train.csv": b"", "fr/a/train.csv": b""}}}
    with pytest.raises(ValueError, match=r"config_name= one of \['en', 'fr'\]"):
        folder.find(source("many", split="train"))


def test_files_are_redirected_without_the_token(hub, folder, monkeypatch):
    hub.token = "hf_secret"
    with pytest.raises(PermissionError, match="HF_TOKEN"):
        folder.find(source("imdb", split="train"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    folder.find(source("imdb", split="train"))
    redirected = {token for path, token in hub.requests if path.startswith("/cdn")}
    assert redirected == {None}


def test_a_hub_that_is_busy_is_asked_again(hub, tmp_path):
    hub.failures = 3
    waited: list[float] = []
    data = HubData(source("imdb"), waited.append)
    data.make(data.items, str(tmp_path / "out"))
    assert len(waited) == 3
    assert (tmp_path / "out/README.md").read_bytes() == b"# imdb"


class Clock:
    """Time that passes where somebody sleeps, and nowhere else."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(params=["refused", "silent"])
def nobody(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a hub that refuses connections, or takes them and says nothing."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        if request.param == "silent":
            taken.listen(100)
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_hub_out_of_reach_is_told_at_once_and_given_up(nobody: str, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", nobody)
    clock, told = Clock(), []
    with pytest.raises(SourceUnreachable) as caught:
        HubData(
            source("imdb"), clock.sleep, clock, patience=100.0, silence=0.05,
            say=lambda line: told.append((clock.now, line)),
        )  # fmt: skip
    why = "Connection refused" if "refused" in str(caught.value) else "timed out"
    assert f"hf://imdb: {nobody} cannot be reached from where the job runs: " in str(caught.value)
    assert why in str(caught.value)
    assert "HF_ENDPOINT" in str(caught.value)
    assert 100 <= clock.now < 115
    at, (first, waits, *others) = [when for when, _ in told], [line for _, line in told]
    assert at[:2] == [0.0, 0.0]
    assert first == f"kinetic: looking up hf://imdb at {nobody}\n"
    assert waits.startswith(f"kinetic: waiting for {nobody} to answer for hf://imdb: ")
    assert why in waits
    assert waits.endswith("asking again for 100 s\n")
    assert 1 <= len(others) <= 3, "one line in half a minute"


def test_a_hub_that_stays_busy_may_answer_another_attempt(hub, tmp_path: Path) -> None:
    hub.failures = 1000
    clock, told = Clock(), []
    data = HubData(source("imdb"), clock.sleep, clock, say=told.append)
    item = next(item for item in data.items if item.path == "README.md")
    with pytest.raises(StoreUnavailable, match="HTTP 503"):
        data.make([item], str(tmp_path / "out"))
    assert "HTTP 503; asking again for 120 s" in told[1]


def test_an_attempt_with_no_way_to_the_hub_is_the_last(hub, tmp_path: Path) -> None:
    """It speaks no TLS, which no patience mends: the attempt ends at once."""
    attempts = Attempts(tmp_path, retries=3)
    volumes = [{"mount": str(tmp_path / "mount"), "source": source("imdb")}]
    attempts.submit(len, "", volumes=volumes).run(HF_ENDPOINT=hub.endpoint.replace("http:", "https:"))
    assert "kinetic: looking up hf://imdb at https://127.0.0.1" in attempts.log
    failure = attempts.outcome().failure
    assert failure is not None
    assert (failure.failure_class, failure.phase) == (wire.FailureClass.CONFIGURATION, "data")
    assert failure.message.startswith("data failed: SourceUnreachable: hf://imdb: https://127.0.0.1")


@pytest.mark.parametrize("path", ["README.md", "big.bin"])
def test_a_file_that_arrives_otherwise_is_refused(hub, tmp_path, path):
    files = {path: b"x" * (2000 if path == "big.bin" else 10)}
    hub.datasets = {"d": {"main": files}}
    hub.damaged = True
    data = HubData(source("d"))
    with pytest.raises(DamagedDownload, match=f"{path}.*arrived with another"):
        data.make(data.items, str(tmp_path / "out"))


def test_a_name_that_leads_elsewhere_is_refused(hub, folder, tmp_path):
    hub.datasets = {"d": {"main": {"../../evil": b"x"}}}
    with pytest.raises(ValueError, match="cannot be a path below"):
        folder.find(source("d"))
    assert not (tmp_path / "evil").exists()
    assert list((tmp_path / "data").iterdir()) == []


def test_the_same_commit_is_downloaded_once(hub, folder):
    first = folder.find(source("imdb"))
    asked = len(hub.requests)
    assert folder.find(source("imdb")) == first
    assert not any("/resolve/" in path for path, _ in hub.requests[asked:])


LIBRARY = """
import json, os, shutil
def load_dataset(kind, split=None, data_files=None):
    assert os.environ["HF_DATASETS_OFFLINE"] == "1"
    class Loaded:
        def save_to_disk(self, target):
            os.mkdir(target)
            told = {"kind": os.path.basename(kind), "split": split, "files": {}}
            for name, paths in (data_files or {}).items():
                told["files"][name] = [[os.path.basename(path), os.path.getsize(path)] for path in paths]
            told["found"] = [] if data_files else sorted(os.listdir(kind))
            with open(os.path.join(target, "dataset_info.json"), "w") as stream:
                json.dump(told, stream)
    return Loaded()
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """What stands for the package `datasets`; its like in the project would be imported before it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/datasets.py").write_text(LIBRARY)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/datasets.py").write_text("raise SystemExit('the project was imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "workspace"))


def dataset(tmp_path: Path, repo: str = "imdb", **more) -> dict:
    store = DirectoryStore("file:///none", "/none")
    folder = DataFolder(str(tmp_path / "data"), store, shared=False, away=str(tmp_path / "workspace"))
    (found,) = contents(folder.find(source(repo, plain=False, **more))).values()
    assert [path.name for path in (tmp_path / "data").iterdir() if "part" in path.name] == []
    return json.loads(found)


@pytest.mark.usefixtures("hub", "library")
def test_a_dataset_is_what_load_from_disk_reads(tmp_path):
    train = [["0000.parquet", len(_LARGE)], ["0001.parquet", 4]]
    expected = {"kind": "parquet", "found": []}
    assert dataset(tmp_path) == {
        **expected,
        "split": None,
        "files": {"train": train, "test": [["0000.parquet", 1]]},
    }
    assert dataset(tmp_path, split="train") == {**expected, "split": "train", "files": {"train": train}}
    at_revision = dataset(tmp_path, revision="main")
    assert at_revision == {"kind": "files", "split": None, "files": {}, "found": ["README.md", "plain_text"]}


def test_a_job_without_the_library_says_what_to_do(hub, folder):
    with pytest.raises(ValueError, match="no package 'datasets': add it to the requirements, or take"):
        folder.find(source("imdb", plain=False))
    assert contents((folder.find(source("imdb"))[0], None))


@pytest.mark.usefixtures("hub", "library")
def test_a_dataset_that_the_library_cannot_read_is_named(tmp_path):
    (tmp_path / "site/datasets.py").write_text("def load_dataset(*_, **more):\n    raise ValueError('odd')")
    with pytest.raises(ValueError, match=r"(?s)hf://imdb cannot be read by.*odd"):
        dataset(tmp_path)


@pytest.mark.usefixtures("library")
def test_one_configuration_of_several_is_a_dataset(hub, tmp_path):
    parquet = {"en/train/0.parquet": b"e", "fr/train/0.parquet": b"f"}
    hub.datasets = {"many": {"refs/convert/parquet": parquet}}
    with pytest.raises(ValueError, match=r"config_name= one of \['en', 'fr'\]"):
        dataset(tmp_path, "many")
    assert dataset(tmp_path, "many", config="fr")["files"] == {"train": [["0.parquet", 1]]}
