"""What keras-kinetic documents, on a cluster: the core of tests/compat."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import test_jobs
from tests.compat.test_jobs import (  # noqa: F401  the same tests, in another place
    test_a_batch_with_failures,
    test_a_collected_job_is_gone,
    test_cleaning_up_ends_what_runs,
    test_results_of_a_cancelled_batch_are_an_error,
)

pytestmark = pytest.mark.usefixtures("_project")


@pytest.fixture
def _project(gke: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(test_jobs.__file__).parent))
