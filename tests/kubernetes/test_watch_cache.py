"""The cache of a namespace's jobs, when it is closed while somebody waits for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.watch_cache import WatchCache
from kinetic_core.testing import FakeCluster
from tests.conftest import wait_for


def test_who_waits_for_a_cache_that_is_closed_goes_on(tmp_path: Path) -> None:
    """Else the thread of a closed client stays until the first list's time is up."""
    cluster = FakeCluster()
    try:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))
        cache = WatchCache(api, "default")
        cluster.faults.delay("GET .*/jobs", 120)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(cache.changes, None)
            wait_for(lambda: cluster.faults.count("GET .*/jobs"))
            cache.close()
            assert asked.result(timeout=20)[1] == set()  # the list's time is 30 s
    finally:
        cluster.close()
