"""What can be written as `Data`, and what is refused where it is written."""

import copy
import hashlib
import pickle

import pytest

from kinetic_core import Data
from kinetic_core.data.locations import HubDataset, gcs_location
from kinetic_core.errors import InvalidRequest


def test_a_local_path_is_resolved_at_once(tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.txt").write_text("a")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("set", "~/set", "./set/", tmp_path / "set"):
        data = Data(text)
        assert (data.path, data.is_dir, data.is_gcs, data.is_hf) == (f"{tmp_path}/set", True, False, False)
    assert Data("set/a.txt").is_dir is False
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Data("nowhere")


@pytest.mark.parametrize(
    ("uri", "bucket", "name", "is_dir"),
    [
        ("gs://bkt/a b/ü/", "bkt", "a b/ü/", True),
        ("gs://bkt/weights.h5", "bkt", "weights.h5", False),
        ("gs://bkt/", "bkt", "", True),
    ],
)
def test_a_bucket_path_says_by_its_slash_what_it_is(uri, bucket, name, is_dir):
    data = Data(uri)
    assert (data.path, data.is_gcs, data.is_dir) == (uri, True, is_dir)
    assert gcs_location(uri) == (bucket, name)


@pytest.mark.parametrize(
    ("uri", "dataset"),
    [
        ("hf://imdb", HubDataset("imdb")),
        ("hf://imdb?split=train", HubDataset("imdb", "train")),
        ("hf://imdb?plain=true", HubDataset("imdb", plain=True)),
        ("hf://datasets/acme/set?config_name=en&revision=v1", HubDataset("acme/set", None, "en", "v1")),
    ],
)
def test_a_dataset_of_the_hub(uri, dataset):
    data = Data(uri, hf_trust_remote_code=True)
    assert (data.is_hf, data.is_dir, data.dataset, data.hf_trust_remote_code) == (True, True, dataset, True)


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("", "empty"),
        ("gs://bucket", "whole bucket is 'gs://bucket/'"),
        ("gs:///x", "no name of a bucket"),
        ("gs://UPPER/x", "no name of a bucket"),
        ("gs://bucket/a//b", "cannot be a path"),
        ("gs://bucket/../b", "cannot be a path"),
        ("gs://bucket/a\nb", "cannot be a path"),
        ("hf://", "no dataset"),
        ("hf://a/b/c", "no dataset"),
        ("hf://../x", "no dataset"),
        ("hf://a b", "no dataset"),
        ("hf://imdb?split", "name=value"),
        ("hf://imdb?name=x", "'name' is not one of split"),
        ("hf://imdb?split=", "split= is empty"),
        ("hf://imdb?plain=1", "neither true nor false"),
        ("hf://imdb?split=a&split=b", "twice"),
        ("s3://bucket/x", "s3:// is not one of"),
    ],
)
def test_paths_that_can_never_work(uri, why):
    with pytest.raises(InvalidRequest, match=why):
        Data(uri)


def test_options_that_can_never_work(tmp_path):
    for uri, options, why in (
        ("hf://imdb", {"fuse": True}, "cannot be mounted"),
        ("gs://bkt/x/", {"fuse": True, "shard": True}, "leave shard out"),
        (str(tmp_path), {"hf_trust_remote_code": True}, "hf:// paths only"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            Data(uri, **options)
    with pytest.raises(TypeError, match="fuse='yes'"):
        Data("gs://bkt/x/", fuse="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give the path"):
        Data(3)  # type: ignore[arg-type]


def test_equal_data_is_one_and_can_be_copied():
    first, second = Data("gs://bkt/x/", fuse=True), Data("gs://bkt/x/", fuse=True)
    assert first == second == copy.deepcopy(first) == pickle.loads(pickle.dumps(first))
    assert len({first, second, Data("gs://bkt/x/")}) == 2
    assert repr(first) == "Data('gs://bkt/x/', fuse=True)"


@pytest.mark.promise("data: Content-addressed with SHA-256 as promised")
def test_the_content_hash_is_the_promised_one(tmp_path):
    def one(name: bytes, body: bytes) -> bytes:
        return hashlib.sha256(name + b"\0" + body).digest()

    (tmp_path / "set/sub").mkdir(parents=True)
    (tmp_path / "set/b.txt").write_bytes(b"B")
    (tmp_path / "set/sub/a.txt").write_bytes(b"A")
    (tmp_path / "set/sub/link").symlink_to("a.txt")
    (tmp_path / "set/round").symlink_to(".")
    whole = b"dir:" + one(b"b.txt", b"B") + one(b"sub/a.txt", b"A") + one(b"sub/link", b"A")
    assert Data(str(tmp_path / "set")).content_hash() == hashlib.sha256(whole).hexdigest()
    single = hashlib.sha256(b"file:" + one(b"b.txt", b"B")).hexdigest()
    assert Data(str(tmp_path / "set/b.txt")).content_hash() == single
    with pytest.raises(InvalidRequest, match="not on this machine"):
        Data("gs://bkt/x").content_hash()
