"""The documented examples of keras-kinetic on a cluster, as a user starts them."""

from __future__ import annotations

import pytest

from tests.examples.test_from_keras_kinetic import EXAMPLES, PLAIN, printed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PLAIN)
def test_on_a_cluster(name: str, gke: dict[str, str]) -> None:
    assert printed(name, KINETIC_PACKAGE_ROOT=str(EXAMPLES)) == PLAIN[name]
