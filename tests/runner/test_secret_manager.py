"""Secrets are read in the pod, by reference, with the pod's identity; nothing repeats a value."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinetic_core._runner.secret_manager import read_secrets
from kinetic_core._runner.store import StoreUnavailable
from tests.secret_manager import SecretManager

PLACE = "projects/p/secrets/hf/versions/latest"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretManager]:
    with SecretManager({PLACE: "value"}) as service:
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        yield service


def test_read_with_the_pods_identity(service: SecretManager) -> None:
    assert read_secrets({"HF_TOKEN": PLACE}) == {"HF_TOKEN": "value"}
    assert service.asked == [f"/v1/{PLACE}:access"]


def test_refused_is_told_with_the_role_it_needs(service: SecretManager) -> None:
    service.statuses.append(403)
    with pytest.raises(ValueError, match=r"projects/p/secrets/hf.*HTTP 403.*secretmanager\.secretAccessor"):
        read_secrets({"HF_TOKEN": PLACE})


def test_an_ill_service_is_asked_again(service: SecretManager) -> None:
    waited: list[float] = []
    service.statuses += [503, 429]
    assert read_secrets({"HF_TOKEN": PLACE}, waited.append) == {"HF_TOKEN": "value"}
    assert len(waited) == 2
    service.statuses += [503] * 9
    with pytest.raises(StoreUnavailable, match="HTTP 503"):
        read_secrets({"HF_TOKEN": PLACE}, waited.append)
