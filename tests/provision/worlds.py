"""A project and a cluster in memory, what is wanted of them, and a clock that does not wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import Connections
from kinetic_core.provision.apply import apply
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.prepare import (
    Prepared,
    prepare_down,
    prepare_namespaces,
    prepare_pools,
    prepare_up,
)
from kinetic_core.provision.resources import Request
from kinetic_core.provision.specification import Wanted, WantedNamespace, wanted_pool
from kinetic_core.provision.vendored import AddOn
from kinetic_core.settings import Settings
from kinetic_core.testing.fake_cluster import FakeCluster
from tests.google_project import FakeProject

ADD_ON = AddOn(
    "Sets",
    "v1.2.0",
    "registry.example/sets:v1.2.0",
    (
        {"kind": "Namespace", "metadata": {"name": "sets-system"}},
        {
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "sets.example.org"},
            "spec": {"group": "e"},
        },
        {
            "kind": "Deployment",
            "metadata": {"name": "sets", "namespace": "sets-system", "labels": {"app": "sets"}},
            "spec": {"template": {"spec": {"containers": [{"image": "registry.example/sets:v1.2.0"}]}}},
        },
    ),
)
"""As the real ones are, but small."""
WANTED = Wanted(
    "my-project",
    "us-central1-a",
    "training",
    pools=(wanted_pool("tpu-v5e-4", spot=True), wanted_pool("tpu-v5p-8"), wanted_pool("gpu-l4")),
    namespaces=(WantedNamespace("ml", ("user:ada@example.org",)),),
    add_ons=(ADD_ON,),
)
KINDS = (
    "RoleBinding",
    "Role",
    "ServiceAccount",
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "CustomResourceDefinition",
    "Deployment",
    "MutatingWebhookConfiguration",
    "Secret",
    "Service",
    "ValidatingWebhookConfiguration",
    "Job",
    "Namespace",
)
"""Of all that is made in the cluster."""
READS = ("GET ", ":getIamPolicy", ":testIamPermissions")


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[tuple[float, Callable[[], object]]] = []

    def at(self, moment: float, happens: Callable[[], object]) -> None:
        """Something happens then."""
        self._later.append((moment, happens))

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self._later if each[0] <= self.now]
        self._later = [each for each in self._later if each not in due]
        for _, happens in due:
            happens()


class Killed(BaseException):
    """The end of a process: nobody catches it."""


class MortalCloud(Cloud):
    """The way to the cloud of a process that ends at its change number `dies_at`: before it is sent, or with
    `after` when it has been and nobody has waited for it.
    """

    dies_at: int | None = None
    after = False
    end: type[BaseException] = Killed
    """How it ends."""
    between: Callable[[], object] | None = None
    """What somebody else does before its change number `dies_at`, in place of its end."""

    def do(self, request: Request) -> None:
        if self.dies_at == 0 and self.between is not None:
            self.between()
        elif self.dies_at == 0:
            if self.after and request.service in ("kubernetes", "objects"):
                super().do(request)
            elif self.after:
                self.service(request.service).send(request.method, request.path, request.body)
            raise self.end
        if self.dies_at is not None:
            self.dies_at -= 1
        super().do(request)


@dataclass
class World:
    """The cloud, and processes that use it; `said` is what they told. `dies` says when the next ones end, and
    `end` how.
    """

    project: FakeProject
    cluster: FakeCluster
    kubeconfig: Path
    clock: Clock = field(default_factory=Clock)
    said: list[str] = field(default_factory=list)
    dies: tuple[int, bool] | None = None
    end: type[BaseException] = Killed

    @property
    def cloud(self) -> MortalCloud:
        """A new process's way to it."""
        cloud = MortalCloud(
            WANTED.parent,
            lambda: ClusterApi(Target(str(self.kubeconfig)), patience=0.0),
            self.project.empty,
            Connections(Settings()),
            self.project.ask,
            self.clock.sleep,
            self.clock,
        )
        if self.dies is not None:
            cloud.dies_at, cloud.after = self.dies
            cloud.end = self.end
        return cloud

    def up(self, wanted: Wanted = WANTED) -> Prepared:
        return self.do(prepare_up, wanted)

    def pool_add(self, wanted: Wanted = WANTED) -> Prepared:
        return self.do(prepare_pools, wanted)

    def namespace_add(self, wanted: Wanted = WANTED) -> Prepared:
        return self.do(prepare_namespaces, wanted)

    def down(self, wanted: Wanted = WANTED) -> Prepared:
        return self.do(prepare_down, wanted)

    def do(self, prepare: Callable[[Cloud, Wanted], Prepared], wanted: Wanted) -> Prepared:
        """A verb, as a process of its own."""
        cloud = self.cloud
        prepared = prepare(cloud, wanted)
        self.carry_out(cloud, prepared)
        return prepared

    def carry_out(self, cloud: Cloud, prepared: Prepared) -> None:
        apply(cloud, prepared, self.said.append)

    def mutations(self) -> list[str]:
        """The requests so far that change something, of both servers."""
        every = [*self.project.faults.requests, *self.cluster.faults.requests]
        return [each.line for each in every if not any(word in each.line for word in READS)]

    def state(self) -> object:
        """Everything that is there, without numbers of versions."""
        objects = {
            (kind, item["metadata"].get("namespace", ""), item["metadata"]["name"])
            for kind in KINDS
            for item in self.cluster.objects.list(kind, "")[1]
        }
        policies = {owner: policy["bindings"] for owner, policy in self.project.policies.items()}
        project = self.project
        return project.resources, policies, project.enabled, project.objects, objects
