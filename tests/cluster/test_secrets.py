"""Values that must not be found anywhere but in the function that asked for them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import traceback
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

import pytest

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.errors import JobMisconfigured
from kinetic_core.store.gcs import GcsObjectStore
from tests.secret_manager import SecretManager

COUNT = 50


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """By the variable's name. The submitter has them in its environment too, and captures none."""
    values = {f"CANARY_{n}": f"canary-{secrets.token_hex(12)}" for n in range(COUNT)}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    caplog.set_level("DEBUG")
    return values


def digest_of(values: Iterable[str]) -> str:
    return hashlib.sha256("".join(values).encode()).hexdigest()


def asking(
    references: Mapping[str, str], captured: Sequence[str] = ()
) -> kinetic_core.RemoteCallable[[bool], str]:
    """A function that has the secrets, and tells their digest: as its result or in an exception."""
    names = sorted(references)
    options = {"secrets": references, "retries": 1, "capture_env_vars": list(captured)}

    @kinetic_core.run(accelerator="cpu", cpu=0.1, **options)
    def digest(fail: bool) -> str:
        import hashlib
        import os

        total = hashlib.sha256("".join(os.environ[name] for name in names).encode()).hexdigest()
        if fail:
            raise ValueError(f"on purpose, with {total}")
        return total

    return digest


def hits(
    values: Mapping[str, str],
    digest: kinetic_core.RemoteCallable[[bool], str],
    api: ClusterApi,
    location: str,
    own_log: pytest.LogCaptureFixture,
) -> list[str]:
    """The canaries found in objects, logs, manifests, pods, events, exceptions, handles and this process's
    own log, once a job has returned and another has raised.
    """
    expected = digest_of(values[name] for name in sorted(values))
    seen: list[str] = [json.dumps(digest.dry_run(False))]
    good, bad = digest.run_async(False), digest.run_async(True)
    assert good.result(cleanup=False, stream_logs=False) == expected
    with pytest.raises(ValueError, match=expected) as caught:
        bad.result(cleanup=False, stream_logs=False)
    seen += ["".join(traceback.format_exception(caught.value)), own_log.text]
    for handle in (good, bad):
        seen += [json.dumps(handle.to_dict()), handle.logs() or "", str(handle.explain())]
        seen.append(json.dumps(api.get("Job", handle.namespace, handle.k8s_name)))
        query = {"labelSelector": f"{JOB_ID}={handle.job_id}"}
        seen.append(json.dumps(api.list("Pod", handle.namespace, query)))
    seen.append(json.dumps(api.list("Event", good.namespace, {})))
    objects = stored(location)
    assert any(good.job_id in name for name in objects)
    return [
        name
        for name, value in values.items()
        for form in (value, base64.b64encode(value.encode()).decode(), value[::-1])
        if any(form in text for text in seen) or any(form.encode() in body for body in objects.values())
    ]


@pytest.mark.promise("data: 50 canaries × objects, logs, manifests, events, exceptions, handles: 0")
def test_no_secret_of_the_namespace_is_found_anywhere(
    api: ClusterApi,
    namespace: str,
    location: str,
    gke: dict[str, str],
    values: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    api.create("Secret", namespace, {"metadata": {"name": "canaries"}, "data": encoded})
    digest = asking({name: f"canaries/{name}" for name in values})
    assert hits(values, digest, api, location, caplog) == []


@pytest.mark.promise("data: Secrets from Secret Manager, by reference")
@pytest.mark.promise("data: 50 canaries × objects, logs, manifests, events, exceptions, handles: 0")
def test_no_secret_of_secret_manager_is_found_anywhere(
    api: ClusterApi,
    location: str,
    gke: dict[str, str],
    values: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pods read them from a stand-in of the service on this machine; one answer says to come again."""
    places = {name: f"projects/p/secrets/{name}/versions/latest" for name in values}
    host = str(urlsplit(os.environ["STORAGE_EMULATOR_HOST"]).hostname)
    with SecretManager({places[name]: values[name] for name in values}, host=host) as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        digest = asking(
            {name: place.removesuffix("/versions/latest") for name, place in places.items()},
            list(service.environment),
        )
        service.statuses.append(503)
        assert hits(values, digest, api, location, caplog) == []
        assert len(service.asked) > 2 * COUNT
        refused = asking({"NONE": "projects/p/secrets/none/versions/3"}, list(service.environment))
        needed = r"projects/p/secrets/none/versions/3.* HTTP 403.* roles/secretmanager\.secretAccessor"
        with pytest.raises(JobMisconfigured, match=needed):
            refused.run_async(False).result(stream_logs=False)


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
