"""Supply of a cluster: its nodes and pools, read while jobs wait, at most twice a minute."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.backends.kubernetes.capacity import Supply, makes_pools
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target, gke_cluster
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ConfigurationError

_FRESH_SECONDS = 30.0
_LOG = logging.getLogger(__name__)


class SupplyReader:
    """Reader of nodes (Kubernetes API) and pools (GKE API), as far as this account may see them."""

    def __init__(self, api: ClusterApi, gke: Target, connections: Connections) -> None:
        self._api, self._gke, self._connections = api, gke, connections
        self._lock = threading.Lock()
        self._supply = Supply()
        self._until = 0.0

    def __str__(self) -> str:
        return str(self._gke) if self._gke.project else "no GKE API"

    def read(self) -> Supply:
        """Return a supply that is at most half a minute old."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._supply = self._asked()
                self._until = time.monotonic() + _FRESH_SECONDS
            return self._supply

    def meaning(self, accelerator: Accelerator) -> Accelerator | None:
        """Return which machine that carries the name the cluster has; None if none, or nobody may know."""
        supply = self.read()
        if supply.pools is None:
            supply = Supply(self._nodes())
        return supply.meaning(accelerator)

    def remedy(self, accelerator: Accelerator) -> str:
        """Say what gives a waiting job a node, as `Supply.remedy`; without the GKE API by the nodes alone."""
        supply = self.read()
        return (Supply(self._nodes()) if supply.pools is None else supply).remedy(accelerator)

    def _asked(self) -> Supply:
        cluster = self._cluster()
        if cluster is None:
            return Supply()
        return Supply(self._nodes(), cluster.get("nodePools") or [], makes_pools(cluster))

    def _nodes(self) -> list[Any] | None:
        try:
            found: list[Any] = self._api.list("Node", "")["items"]
        except ClusterError as exc:
            _LOG.debug("nodes cannot be listed, judging by the pools: %s", exc)
            return None
        return found

    def _cluster(self) -> dict[str, Any] | None:
        """Return the GKE API's description of this cluster; None if the API does not know or show it."""
        if not self._gke.project:
            return None
        try:
            cluster = gke_cluster(self._gke, self._connections)
        except (ConfigurationError, OSError) as exc:
            _LOG.debug("the pools of the cluster cannot be listed: %s", exc)
            return None
        # A kubeconfig may lead to another cluster than the one the settings name.
        same = urlsplit(f"//{cluster.get('endpoint')}").netloc == urlsplit(self._api.server).netloc
        return cluster if same else None
