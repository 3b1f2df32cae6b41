"""Jobs in pods that may do no more in the bucket than `kinetic up` lets them, and one that is hostile."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import kinetic_core
from kinetic_core import Data
from kinetic_core._runner import object_names
from kinetic_core._runner.gcs import GcsStore
from kinetic_core._runner.store import StoreUnavailable
from kinetic_core.errors import KineticError
from kinetic_core.provision.iam import CREATE, READ, pod_grants
from kinetic_core.store.gcs import GcsObjectStore
from tests.bucket_policy import BucketPolicy, PolicyProxy

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.attack]
PODS = "principal://pods"


@pytest.fixture(scope="module")
def location() -> str:
    """A prefix of this module's own: what is stored there does not outlive the attack."""
    return f"test-bucket/{secrets.token_hex(4)}"


@pytest.fixture
def guarded(
    gke: dict[str, str], location: str, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PolicyProxy]:
    """The bucket, with what pods are granted below the prefix of this run."""
    bucket, _, prefix = location.partition("/")
    bindings = [
        {"role": grant.role, "members": [grant.member], "condition": grant.condition()}
        for grant in pod_grants(PODS, bucket, prefix)
    ]
    host = str(urlsplit(emulator).hostname)
    policy = BucketPolicy(bucket, bindings)
    with PolicyProxy(emulator, policy, PODS, host=host, trusted=(host, "127.0.0.1")) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        yield proxy


def test_jobs_need_no_more_than_pods_are_granted(guarded: PolicyProxy, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a").write_text("a")

    @kinetic_core.run(accelerator="cpu", cpu=0.1, retries=1, lease=15)
    def work(folder: str) -> str:
        import time
        import urllib.parse
        import urllib.request

        if os.environ["KINETIC_FAILED_COUNT"] == "0":
            raise KeyError("the first time")
        time.sleep(6)  # the lease is renewed
        bucket, _, prefix = os.environ["KINETIC_OUTPUT_DIR"].removeprefix("gs://").partition("/")
        for _ in range(2):
            where = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/{bucket}/o?uploadType=media"
            name = urllib.parse.quote(f"{prefix}/model", safe="")
            urllib.request.urlopen(f"{where}&name={name}", data=b"weights").close()
        return (Path(folder) / "a").read_text() * 1000

    handle = work.run_async(Data(str(tmp_path / "set")))
    assert handle.result(stream_logs=False, cleanup=False) == "a" * 1000
    assert [file.name for file in handle.outputs()] == ["model"]
    handle.cleanup()
    plus_one = kinetic_core.run(accelerator="cpu", cpu=0.1)(lambda number: number + 1)
    assert plus_one.run_async_map([1, 2, 3]).results(cleanup=False) == [2, 3, 4]
    on_worker = kinetic_core.run(accelerator="cpu", cpu=0.1, warm="5s")(lambda number: number + 1)
    on_lanes = on_worker.run_async_map([1, 2, 3], max_concurrent=1)
    assert on_lanes.results(timeout=300, cleanup=False) == [2, 3, 4]
    assert guarded.refused == []


def test_a_pod_cannot_change_what_others_execute(guarded: PolicyProxy, location: str) -> None:
    """A hostile job tries to replace, delete and plant everything that it can list."""
    victim = kinetic_core.run(accelerator="cpu", cpu=0.1)(lambda: "good").run_async()
    assert victim.result(stream_logs=False, cleanup=False) == "good"
    store = GcsObjectStore.at(location)
    names = [info.name for info in store.list("") if not info.name.startswith("outputs/")]
    before = {name: store.read(name) for name in names}

    @kinetic_core.run(accelerator="cpu", cpu=0.1)
    def attack(location: str) -> dict[str, list[str]]:
        import urllib.error
        import urllib.request
        from urllib.parse import quote

        bucket, _, prefix = location.partition("/")
        base, own = os.environ["STORAGE_EMULATOR_HOST"], os.environ["KINETIC_JOB_ID"]

        def ask(method: str, path: str, body: bytes | None = None) -> Any:
            request = urllib.request.Request(f"{base}{path}", data=body, method=method)
            try:
                with urllib.request.urlopen(request) as answer:
                    return json.loads(answer.read() or b"{}")
            except urllib.error.HTTPError as error:
                return error.code

        found = ask("GET", f"/storage/v1/b/{bucket}/o?prefix={prefix}/")["items"]
        done: dict[str, list[str]] = {"replaced": [], "deleted": [], "planted": []}
        planted = [
            *(
                f"{prefix}/{name}"
                for name in ("packs/x.zip", "trees/x.json", "runners/x.zip", "index/0-job-x")
            ),
            *(f"{prefix}/{name}" for name in ("jobs/job-x/handle.json", "batches/grp-x/manifest.json")),
            "other/jobs/job-x/result",
        ]
        for name in [*(each["name"] for each in found), *planted]:
            if own in name:
                continue
            upload = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
            if isinstance(ask("POST", upload, b"evil"), dict):
                done["planted" if name in planted else "replaced"].append(name)
            if isinstance(ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"), dict):
                done["deleted"].append(name)
        return done

    done = attack.run_async(location).result(stream_logs=False)
    others = {what: [name for name in names if "/outputs/" not in name] for what, names in done.items()}
    assert others == {"replaced": [], "deleted": [], "planted": []}
    assert {name: store.read(name) for name in before} == before
    assert kinetic_core.attach(victim.job_id).result(stream_logs=False) == "good"


def test_a_planted_result_costs_the_job_nothing_but_its_value(guarded: PolicyProxy, location: str) -> None:
    """It cannot be replaced with these rights: neither believed nor a reason to run the function again."""

    @kinetic_core.run(accelerator="cpu", cpu=0.1, retries=3)
    def work() -> str:
        print("running", flush=True)
        return "good"

    handle = work.run_async()
    GcsObjectStore.at(location).create_if_absent(object_names.result(handle.job_id), b"evil")
    with pytest.raises(KineticError):
        handle.result(stream_logs=False, cleanup=False)
    assert (handle.logs() or "").count("running") == 1
    handle.cleanup()


def test_a_create_that_may_not_replace_finds_the_name_taken(
    location: str, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the service tells first that the name is taken, or that the pod may not replace."""
    bucket = location.partition("/")[0]
    creating = [{"role": role, "members": [PODS]} for role in (CREATE, READ)]
    host = str(urlsplit(emulator).hostname)
    with PolicyProxy(emulator, BucketPolicy(bucket, creating), PODS, host=host) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        store = GcsStore(f"gs://{location}")
        assert [
            store.create_if_absent("jobs/x/result", b"1"),
            store.create_if_absent("jobs/x/result", b"2"),
        ] == [True, False]
        assert store.create_if_absent("jobs/x/large", bytes(9 << 20))
        assert not store.create_if_absent("jobs/x/large", bytes(9 << 20))
        with pytest.raises(StoreUnavailable, match="not permitted"):
            store.replace("jobs/x/result", b"3")
        assert store.read("jobs/x/result") == b"1"
        assert any("storage.objects.delete" in why for why in proxy.refused)
        store.close()
