"""A watch over the pods of tests' jobs."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import Any

_LOOK_SECONDS = 0.5


class PodWatch(threading.Thread):
    """The pods there ever were, by DAG, the earliest first, and how many of a DAG's lived at once."""

    def __init__(self, api: Any, namespace: str, run: str) -> None:
        super().__init__(daemon=True)
        self.api, self._namespace, self._run, self._over = api, namespace, run, threading.Event()
        self.pods: defaultdict[str, list[str]] = defaultdict(list)
        self.living: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            living: Counter[str] = Counter()
            query = {"labelSelector": f"tests={self._run}"}
            for pod in self.api.list("Pod", self._namespace, query)["items"]:
                dag_id, name = pod["metadata"]["labels"]["dag"], pod["metadata"]["name"]
                living[dag_id] += pod["status"]["phase"] in ("Pending", "Running")
                if name not in self.pods[dag_id]:
                    self.pods[dag_id].append(name)
            self.living = living
            self.most |= living

    def close(self) -> None:
        self._over.set()
        self.join()
