"""`secrets=` takes references: to a Secret of the namespace or to Secret Manager, never a value."""

from __future__ import annotations

import pytest

from kinetic_core.errors import InvalidRequest
from kinetic_core.options import RunOptions

MANAGED = "projects/my-project/secrets/hf"


def test_both_kinds_of_reference() -> None:
    options = RunOptions.checked(secrets={"A": "tokens/hf", "B": MANAGED, "C": f"{MANAGED}/versions/3"}).pod
    assert options.cluster_secrets == {"A": "tokens/hf"}
    assert options.managed_secrets == {"B": f"{MANAGED}/versions/latest", "C": f"{MANAGED}/versions/3"}


@pytest.mark.promise("data: Secrets from Kubernetes, by reference")
@pytest.mark.parametrize(
    "value", ["hunter2", "hf_abcdef0123456789", "a/b/c", "Secret/x", "projects/p/secrets/"]
)
def test_a_value_in_its_place_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidRequest, match="'HF_TOKEN' is not a reference") as caught:
        RunOptions.checked(secrets={"HF_TOKEN": value})
    assert value not in str(caught.value)
