"""What our own tests use, for yours: stores, clusters and servers that fail when they are told to."""

from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.fault_proxy import FaultProxy
from kinetic_core.testing.faulty_server import Fault, Faults, Request
from kinetic_core.testing.kubelet import (
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
from kinetic_core.testing.kueue import make_queue
from kinetic_core.testing.memory_store import MemoryObjectStore

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
