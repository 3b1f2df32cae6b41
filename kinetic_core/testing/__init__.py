"""What our own tests use, for yours: stores, clusters and servers that fail when they are told to."""

from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.fault_proxy import FaultProxy
from kinetic_core.testing.faults import Fault, Faults, Request
from kinetic_core.testing.memory_store import MemoryObjectStore
from kinetic_core.testing.pod_behaviour import (
    PodBehaviour,
    cannot_be_pulled,
    cannot_be_scheduled,
    exits,
    is_evicted,
    is_preempted,
    runs_out_of_memory,
    runs_until_stopped,
    stays_pending,
    succeeds,
)
from kinetic_core.testing.queues import make_queue

__all__ = [
    "FakeCluster",
    "Fault",
    "FaultProxy",
    "Faults",
    "MemoryObjectStore",
    "PodBehaviour",
    "Request",
    "cannot_be_pulled",
    "cannot_be_scheduled",
    "exits",
    "is_evicted",
    "is_preempted",
    "make_queue",
    "runs_out_of_memory",
    "runs_until_stopped",
    "stays_pending",
    "succeeds",
]
