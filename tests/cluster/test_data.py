"""Data on a real cluster: what the function finds, whatever happens to what is stored."""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import Data
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.connections import default_connections
from kinetic_core.errors import InvalidRequest, JobMisconfigured
from kinetic_core.jobs.dry_run import dry_run
from kinetic_core.jobs.submit import Call
from kinetic_core.options import RunOptions
from kinetic_core.project.tree import store_data
from kinetic_core.store.gcs import GcsObjectStore
from tests.cluster.objects import kubectl, stored
from tests.conftest import wait_for
from tests.hugging_face import FakeHub

pytestmark = pytest.mark.usefixtures("gke")
on_cpu = kinetic_core.run(accelerator="cpu", cpu=0.1)


@on_cpu
def look(*paths: str) -> list[Any]:
    """All that a job can see below each path; of a file its bytes."""

    def seen(path: Path) -> Any:
        if path.is_symlink() and not path.readlink().is_absolute():
            return f"-> {path.readlink()}"
        if path.is_dir():
            return {child.name: seen(child) for child in path.iterdir()}
        with path.open("rb") as stream:
            content = stream.read(100)
        return oct(path.stat().st_mode & 0o777), path.stat().st_size, content

    return [(Path(path).name, seen(Path(path))) for path in paths]


@pytest.fixture
def bucket(location: str, emulator: str) -> Iterator[GcsObjectStore]:
    """Somebody's bucket with data in it."""
    store = GcsObjectStore.at(f"test-bucket/theirs-{secrets.token_hex(4)}")
    for name in ("set/a b.txt", "set/ü/deep.txt", "set.h5"):
        store.create_if_absent(name, name.encode())
    yield store
    for info in list(store.list("")):
        store.delete(info.name)


@pytest.mark.promise("data: Local file and directory, nested in arguments, `volumes=`")
@pytest.mark.promise("data: Empty directories, modes and symlinks survive")
@pytest.mark.promise("data: Spaces and unicode in names; symlink loops")
def test_local_data_arrives_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "set/empty").mkdir(parents=True)
    (tmp_path / "set/run me.sh").write_text("#!/bin/sh")
    (tmp_path / "set/run me.sh").chmod(0o750)
    (tmp_path / "set/latest").symlink_to("run me.sh")
    (tmp_path / "set/ü ☃.txt").write_text("a")
    (tmp_path / "set/here").symlink_to("there")
    (tmp_path / "set/there").symlink_to("here")
    (tmp_path / "one.bin").write_bytes(b"1")
    one = Data(str(tmp_path / "one.bin"))
    mounted = kinetic_core.run(accelerator="cpu", volumes={"/vol": Data(str(tmp_path / "set")), "/file": one})
    file = ("0o750", 9, b"#!/bin/sh")
    whole = {"empty": {}, "latest": "-> run me.sh", "run me.sh": file, "ü ☃.txt": ("0o644", 1, b"a")}
    handle = mounted(look.__wrapped__).run_async(Data(str(tmp_path / "set")), one, "/vol", "/file")
    folder, single, volume, mounted_file = handle.result(stream_logs=False)
    assert folder[1] == whole
    assert single == ("one.bin", ("0o644", 1, b"1"))
    assert volume[1].keys() == whole.keys()
    assert mounted_file == ("file", {"one.bin": ("0o644", 1, b"1")})


@pytest.mark.promise("data: `gs://` directory, `gs://` single object")
def test_a_directory_and_an_object_of_a_bucket(bucket: GcsObjectStore) -> None:
    folder, single = look(Data(f"{bucket.uri}/set/"), Data(f"{bucket.uri}/set.h5"))
    assert folder[1]["a b.txt"][2] == b"set/a b.txt"
    assert folder[1]["ü"]["deep.txt"][2] == b"set/\xc3\xbc/deep.txt"
    assert single[0] == "set.h5"
    assert single[1][2] == b"set.h5"


@pytest.mark.promise("data: Pod: parallel, verified download")
def test_a_large_object_comes_in_pieces(bucket: GcsObjectStore, tmp_path: Path) -> None:
    body = random.Random(1).randbytes(70 << 20)
    (tmp_path / "large").write_bytes(body)
    bucket.create_if_absent("large.bin", tmp_path / "large")

    @on_cpu
    def digest(path: str) -> str:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    wanted = hashlib.sha256(body).hexdigest()
    assert digest(Data(f"{bucket.uri}/large.bin")) == wanted
    assert digest(Data(str(tmp_path / "large"))) == wanted


@pytest.mark.promise("data: `gs://` directory, `gs://` single object")
def test_what_is_not_in_the_bucket_is_refused_at_once(bucket: GcsObjectStore, location: str) -> None:
    before = stored(location, "")
    for uri, why in (
        (f"{bucket.uri}/nothing/", "no object's name begins with"),
        (f"{bucket.uri}/nothing.h5", "has no object"),
        (f"{bucket.uri}/set", "write it with a slash"),
        ("gs://no-such-bucket-here/x", "there is no bucket"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            look.run_async(Data(uri))
    assert stored(location, "") == before


def test_what_only_the_job_may_see_is_left_to_the_job(emulator: str) -> None:
    name = f"theirs-{secrets.token_hex(6)}"

    def mode(mode: str) -> None:
        body = json.dumps({"name": name, "mode": mode}).encode()
        request = urllib.request.Request(f"{emulator}/emulator/bucket", body, method="POST")
        with urllib.request.urlopen(request):
            pass

    mode("forbidden")
    try:
        with pytest.raises(JobMisconfigured, match=f"gs://{name}/set/: the job's service account may not"):
            look.run_async(Data(f"gs://{name}/set/")).result(stream_logs=False)
    finally:
        mode("normal")


@pytest.mark.promise("data: A missing object is an error that names it")
def test_what_went_away_before_the_job_started_is_named(bucket: GcsObjectStore) -> None:
    @kinetic_core.run(accelerator="cpu", queue="nobody-starts-it")
    def wait(path: str) -> str:
        return path

    from kinetic_core.backends.kubernetes.connection import Target

    handle = wait.run_async(Data(f"{bucket.uri}/set.h5"))
    bucket.delete("set.h5")
    api = ClusterApi(Target(os.environ["KUBECONFIG"]))
    api.patch("Job", handle.namespace, handle.k8s_name, {"spec": {"suspend": False}})
    with pytest.raises(JobMisconfigured, match=r"set\.h5 is not there"):
        handle.result(stream_logs=False)


@pytest.mark.promise("data: What a lifecycle rule removed is uploaded again")
@pytest.mark.promise("data: Object deleted between marker check and download")
def test_what_a_lifecycle_rule_removed_is_stored_again(tmp_path: Path, location: str) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/unique.txt").write_text(secrets.token_hex(50))
    data = Data(str(tmp_path / "set"))
    before = set(stored(location, "packs/"))
    store_data(tmp_path / "set", GcsObjectStore.at(location), cache=tmp_path / "cache")
    (pack,) = set(stored(location, "packs/")) - before
    handle = kinetic_core.run(accelerator="cpu", queue="nobody-starts-it")(look.__wrapped__).run_async(data)
    GcsObjectStore.at(location).delete(pack)
    from kinetic_core.backends.kubernetes.connection import Target

    api = ClusterApi(Target(os.environ["KUBECONFIG"]))
    api.patch("Job", handle.namespace, handle.k8s_name, {"spec": {"suspend": False}})
    with pytest.raises(JobMisconfigured, match=pack):
        handle.result(stream_logs=False)
    ((_, found),) = look(data)
    assert list(found) == ["unique.txt"]


@pytest.mark.attack
@pytest.mark.promise("data: Disk too small on the pod")
@pytest.mark.parametrize("claim", ["4m"], indirect=True)
def test_a_cache_volume_that_is_full_is_done_without(
    claim: str, tmp_path: Path, bucket: GcsObjectStore
) -> None:
    (tmp_path / "large").write_bytes(random.Random(1).randbytes(16 << 20))
    bucket.create_if_absent("large", tmp_path / "large")
    on_small = kinetic_core.run(accelerator="cpu", cache_volume=claim)(look.__wrapped__)
    handle = on_small.run_async(Data(str(tmp_path / "large")), Data(f"{bucket.uri}/large"))
    assert [found[1] for _, found in handle.result(stream_logs=False, cleanup=False)] == [16 << 20] * 2
    assert "the cache volume takes nothing in (No space left on device)" in (handle.logs() or "")
    handle.cleanup()


@pytest.mark.attack
def test_what_another_pod_wrote_into_a_cache_is_not_believed(
    claim: str, tmp_path: Path, bucket: GcsObjectStore
) -> None:
    """A hostile job writes over all of the volume, again and again while others read."""

    @kinetic_core.run(accelerator="cpu", cache_volume=claim, timeout=300)
    def poison() -> None:
        import time

        evil = Path("/kinetic-cache/uv/archive-v0/evil")
        evil.mkdir(parents=True, exist_ok=True)
        (evil / "sitecustomize.py").write_text("raise SystemExit('evil')")
        while True:
            for path in Path("/kinetic-cache").rglob("*"):
                if path.is_file() and path.name[0] != ".":
                    path.chmod(0o666)
                    path.write_bytes(b"evil" * (path.stat().st_size // 4 + 1))
                    os.truncate(path, path.stat().st_size // 4 * 4)
            time.sleep(0.05)

    (tmp_path / "set").mkdir()
    (tmp_path / "set/a").write_bytes(b"good" * 1000)
    bucket.create_if_absent("good", b"good" * 1000)
    both = Data(f"{bucket.uri}/good"), Data(str(tmp_path / "set"))

    @kinetic_core.run(accelerator="cpu", cache_volume=claim)
    def read(single: str, folder: str) -> tuple[set[bytes], dict[str, str]]:
        import time

        found = set()
        for _ in range(20):
            found |= {Path(single).read_bytes()[:8], (Path(folder) / "a").read_bytes()[:8]}
            time.sleep(0.05)
        return found, {name: value for name, value in os.environ.items() if "/kinetic-cache/" in value}

    assert read(*both) == ({b"goodgood"}, {})
    hostile = poison.run_async()
    try:
        name = hashlib.md5(b"good" * 1000).hexdigest()
        poisoned = Path("/var/tmp", claim, "contents", f"md5-{name}")
        wait_for(lambda: poisoned.read_bytes().startswith(b"evil"), 120)
        handle = read.run_async(*both)
        assert handle.result(stream_logs=False, cleanup=False) == ({b"goodgood"}, {})
        assert "is not what its name says: not used, fetched again" in (handle.logs() or "")
        handle.cleanup()
    finally:
        hostile.cancel()


@pytest.mark.promise("data: Shared between attempts and containers by a cache volume")
@pytest.mark.promise("data: Cache volume (PVC or CSI)")
def test_jobs_share_what_is_in_a_cache_volume(claim: str, tmp_path: Path, bucket: GcsObjectStore) -> None:
    caching = kinetic_core.run(accelerator="cpu", cache_volume=claim)(look.__wrapped__)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a").write_text("a")
    both = Data(f"{bucket.uri}/set/"), Data(str(tmp_path / "set"))
    first, second = caching.run_async(*both), caching.run_async(*both)
    assert first.result(stream_logs=False, cleanup=False) == second.result(stream_logs=False, cleanup=False)
    said = [handle.logs() or "" for handle in (first, second)]
    assert sum("downloading" in text for text in said) == 1
    third = caching.run_async(*both)
    third.result(stream_logs=False, cleanup=False)
    assert "downloading" not in (third.logs() or "")


@pytest.mark.promise("data: Shared between attempts and containers by a cache volume")
def test_attempts_share_what_is_in_a_cache_volume(claim: str, bucket: GcsObjectStore) -> None:
    @kinetic_core.run(accelerator="cpu", cache_volume=claim, retries=1)
    def once_more(path: str) -> list[str]:
        if os.environ["KINETIC_FAILED_COUNT"] == "0":
            raise KeyError("the first time")
        return sorted(child.name for child in Path(path).iterdir())

    handle = once_more.run_async(Data(f"{bucket.uri}/set/"))
    assert handle.result(stream_logs=False, cleanup=False) == ["a b.txt", "ü"]
    assert (handle.logs() or "").count("downloading") == 1
    handle.cleanup()


@pytest.mark.promise("data: `hf://` against a stand-in of the hub; `hf_trust_remote_code`")
def test_a_dataset_of_the_hub(monkeypatch: pytest.MonkeyPatch, api: ClusterApi) -> None:
    files = {"data/train-0.csv": b"a,b\n" * 1000, "data/test-0.csv": b"t", "README.md": b"# set"}
    host = os.environ["STORAGE_EMULATOR_HOST"].partition("//")[2].partition(":")[0]
    with FakeHub({"acme/set": {"main": files}}, host=host) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        ((_, whole), (_, train)) = look(
            Data("hf://acme/set?plain=true"), Data("hf://acme/set?split=train&plain=true")
        )
    assert whole["README.md"][2] == b"# set"
    assert sorted(whole["data"]) == ["test-0.csv", "train-0.csv"]
    assert list(train["data"]) == ["train-0.csv"]
    assert train["data"]["train-0.csv"][1] == 4000


@pytest.mark.promise("gke: `dry_run` returns it")
@pytest.mark.promise("data: `fuse=True`: validated manifest; a file resolves to that file")
def test_mounts_are_what_the_api_server_accepts(
    bucket: GcsObjectStore, tmp_path: Path, namespace: str, location: str
) -> None:
    (tmp_path / "set/sub").mkdir(parents=True)
    (tmp_path / "set/sub/a.txt").write_text("a")
    volumes = {
        "/vol": Data(f"{bucket.uri}/set/", fuse=True),
        "/file": Data(f"{bucket.uri}/set.h5", fuse=True),
    }
    options = RunOptions.checked("cpu", volumes=volumes, cache_volume="shared")
    call = Call(look.__wrapped__, (Data(str(tmp_path / "set"), fuse=True),))
    manifest = dry_run(call, options, default_connections())
    made = kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", given=manifest)
    pod = made["spec"]["template"]
    assert pod["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    drivers = [volume["csi"] for volume in pod["spec"]["volumes"] if "csi" in volume]
    assert {csi["driver"] for csi in drivers} == {"gcsfuse.csi.storage.gke.io"}
    folders = [csi["volumeAttributes"]["mountOptions"].partition("only-dir=")[2] for csi in drivers]
    prefix = bucket.uri.removeprefix("gs://test-bucket/")
    assert folders[:2] == [f"{prefix}/set", prefix]
    assert folders[2].startswith(f"{location.partition('/')[2]}/data/")
