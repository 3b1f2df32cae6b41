"""Values that must not be found anywhere but in the function that asked for them."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import traceback

import pytest

import kinetic_core
from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.names import JOB_ID
from kinetic_core.storage.gcs import GcsObjectStore

COUNT = 50


def test_no_secret_is_found_anywhere(
    api: ClusterApi,
    namespace: str,
    location: str,
    gke: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In objects, logs, manifests, pods, events, exceptions, handles and this process's own log.

    The submitter has them in its environment too, and captures none.
    """
    values = {f"CANARY_{n}": f"canary-{secrets.token_hex(12)}" for n in range(COUNT)}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    api.create("Secret", namespace, {"metadata": {"name": "canaries"}, "data": encoded})
    names = sorted(values)

    @kinetic_core.run(accelerator="cpu", secrets={name: f"canaries/{name}" for name in names}, retries=1)
    def digest(fail: bool) -> str:
        import hashlib
        import os

        total = hashlib.sha256("".join(os.environ[name] for name in names).encode()).hexdigest()
        if fail:
            raise ValueError(f"on purpose, with {total}")
        return total

    caplog.set_level("DEBUG")
    expected = hashlib.sha256("".join(values[name] for name in names).encode()).hexdigest()
    seen: list[str] = [json.dumps(digest.dry_run(False))]
    good, bad = digest.run_async(False), digest.run_async(True)
    assert good.result(cleanup=False, stream_logs=False) == expected
    with pytest.raises(ValueError, match=expected) as caught:
        bad.result(cleanup=False, stream_logs=False)
    seen += ["".join(traceback.format_exception(caught.value)), caplog.text]
    for handle in (good, bad):
        seen += [json.dumps(handle.to_dict()), handle.logs() or "", str(handle.explain())]
        seen.append(json.dumps(api.get("Job", namespace, handle.k8s_name)))
        seen.append(json.dumps(api.list("Pod", namespace, {"labelSelector": f"{JOB_ID}={handle.job_id}"})))
    seen.append(json.dumps(api.list("Event", namespace, {})))
    objects = stored(location)
    assert any(good.job_id in name for name in objects)
    hits = [
        name
        for name, value in values.items()
        for form in (value, encoded[name], value[::-1])
        if any(form in text for text in seen) or any(form.encode() in body for body in objects.values())
    ]
    assert hits == []


def stored(location: str) -> dict[str, bytes]:
    """Every object of this run, with zip archives opened."""
    import io
    import zipfile

    store = GcsObjectStore.at(location)
    found: dict[str, bytes] = {}
    for info in store.list(""):
        found[info.name] = body = store.read(info.name)
        if zipfile.is_zipfile(io.BytesIO(body)):
            with zipfile.ZipFile(io.BytesIO(body)) as archive:
                found |= {f"{info.name}!{name}": archive.read(name) for name in archive.namelist()}
    return found
