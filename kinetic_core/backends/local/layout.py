"""Where the local backend keeps things, below one directory."""

from __future__ import annotations

import os

DROPPED_MARK = ".dropped"
"""How the name ends of the file that ends all jobs of a batch that wait for their turn."""


class Layout:
    """Paths below a root, as strings; the agent, which every job waits for, imports neither pathlib nor
    dataclasses.

    ::

        store/                        the object store
        cluster/{namespace}/          {job id}.json: a Job and its Pods; {job id}.lock: held while it lives
                                      {batch id}.batch.lock, .making.lock, .turn.lock: see queue.py
                                      {batch id}.dropped: since when its jobs that wait are ended
        origins/{namespace}/          {origin}-{job id}: an empty file for each job that has an origin
        removed/{hour}/{namespace}/   {job id}.json: the times of a Job and its Pods that were removed then
        signing-secret                from which the keys of outcomes are made
        slots/cpu-{i}.lock            one per core: held by the job that uses it
        work/{job id}/{attempt}/      workspace and data of a running attempt
        logs/{job id}-{attempt}.log   what an attempt printed; `-own-` for a call's pod of its own
        runners/{sha256}/             an unpacked runner
        volumes/{tree}/               data mounted as volumes, shared by jobs
    """

    def __init__(self, root: str) -> None:
        self.root = root

    @property
    def store(self) -> str:
        return os.path.join(self.root, "store")

    def origins(self, namespace: str) -> str:
        return os.path.join(self.root, "origins", namespace)

    @property
    def signing_secret(self) -> str:
        return os.path.join(self.root, "signing-secret")

    @property
    def slots(self) -> str:
        return os.path.join(self.root, "slots")

    @property
    def volumes(self) -> str:
        return os.path.join(self.root, "volumes")

    def cluster(self, namespace: str) -> str:
        return os.path.join(self.root, "cluster", namespace)

    def record(self, namespace: str, job_id: str) -> str:
        return os.path.join(self.cluster(namespace), f"{job_id}.json")

    def removed(self, hour: int | None = None) -> str:
        """Where times of removed jobs are: all of them, or those of an hour since the epoch."""
        return os.path.join(self.root, "removed", "" if hour is None else str(hour))

    def lock(self, namespace: str, job_id: str) -> str:
        return os.path.join(self.cluster(namespace), f"{job_id}.lock")

    def batch_lock(self, namespace: str, group_id: str) -> str:
        """Not named as a job's: `grp-a-2` may be a batch, and an input of another."""
        return os.path.join(self.cluster(namespace), f"{group_id}.batch.lock")

    def making_lock(self, namespace: str, group_id: str) -> str:
        return os.path.join(self.cluster(namespace), f"{group_id}.making.lock")

    def turn_lock(self, namespace: str, group_id: str) -> str:
        return os.path.join(self.cluster(namespace), f"{group_id}.turn.lock")

    def dropped(self, namespace: str, group_id: str) -> str:
        return os.path.join(self.cluster(namespace), f"{group_id}{DROPPED_MARK}")

    def work(self, job_id: str) -> str:
        return os.path.join(self.root, "work", job_id)

    def log(self, job_id: str, attempt: int) -> str:
        return os.path.join(self.root, "logs", f"{job_id}-{attempt}.log")

    def runner(self, sha256: str) -> str:
        return os.path.join(self.root, "runners", sha256)
