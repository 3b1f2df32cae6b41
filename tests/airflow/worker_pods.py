"""An Airflow with the KubernetesExecutor: its components are processes of this machine, its workers pods."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kinetic_core.provision.namespaces import RULES

_HOST = os.environ.get("TESTCLUSTER_HOST", "10.88.0.1")
"""This machine, as pods see it."""
_NODES = ("node-1", "node-2")
"""Where workers run. Jobs of plain processors find no room there: pods must tolerate the nodes' taints."""
_TAINTS = ("nvidia.com/gpu", "cloud.google.com/gke-spot", "google.com/tpu")
_ACCOUNT = "airflow-worker"
_WORKERS = 8
"""At once."""


@dataclass
class WorkerPods:
    """The namespace of workers and jobs, and who workers are; `airflow` is a `DemoAirflow`.

    `shares_processes`: workers have the process ids of this machine.
    """

    api: Any
    namespace: str
    image: str
    shares_processes: bool = False

    @contextmanager
    def made(self) -> Iterator[None]:
        """The namespace, in which workers have the role that the documentation gives to who submits jobs."""
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": self.namespace}
        role = {"apiGroup": group, "kind": "Role", "name": _ACCOUNT}
        named: dict[str, Any] = {"metadata": {"name": _ACCOUNT}}
        self.api.create("Namespace", "", {"metadata": {"name": self.namespace}})
        try:
            self.api.create("ServiceAccount", self.namespace, named)
            self.api.create("Role", self.namespace, {**named, "rules": RULES})
            self.api.create("RoleBinding", self.namespace, {**named, "roleRef": role, "subjects": [subject]})
            yield
        finally:  # with Jobs whose pods are to be replaced, a namespace would never end
            self.api.delete_all("Job", self.namespace, "app=kinetic")
            self.api.delete("Namespace", "", self.namespace)

    def configure(self, airflow: Any, folders: Sequence[Path] = (), variables: Sequence[str] = ()) -> None:
        """Let an Airflow that has not been started have its workers there.

        `folders` of this machine and `variables` of Airflow's environment are what they have besides.
        """
        port = airflow.environment["AIRFLOW__API__PORT"]
        everywhere = {
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{_HOST}:{port}/execution/",
            "KINETIC_BACKEND": "gke",
            "KINETIC_NAMESPACE": self.namespace,
        }
        template = airflow.home / "worker.yaml"
        airflow.environment |= {
            **everywhere,
            "AIRFLOW__API__HOST": "0.0.0.0",
            "AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(_WORKERS),
            "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": airflow.environment["KINETIC_KUBECONFIG"],
            "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
            "AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE": self.namespace,
            "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(template),
        }
        names = ("KINETIC_BUCKET", "KINETIC_CONTAINER_IMAGE", "STORAGE_EMULATOR_HOST")
        names += ("AIRFLOW__CORE__DAGS_FOLDER", "AIRFLOW__LOGGING__BASE_LOG_FOLDER")
        names += (
            "AIRFLOW__CORE__LOAD_EXAMPLES",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT",
        )
        inside = {**everywhere, **{name: airflow.environment[name] for name in (*names, *variables)}}
        shared = [airflow.dags_folder, airflow.home / "logs", *folders]
        template.write_text(yaml.safe_dump(self._template(inside, shared)))

    def _template(self, environment: dict[str, str], folders: list[Path]) -> dict[str, Any]:
        """DAGs and logs are folders of this machine, as a volume of many readers would be elsewhere."""
        for folder in folders:
            folder.mkdir(exist_ok=True)
        mounts = [{"name": folder.name, "mountPath": str(folder)} for folder in folders]
        base = {
            "name": "base",
            "image": self.image,
            "imagePullPolicy": "Always",
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
            "volumeMounts": mounts,
        }
        nodes = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(_NODES)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [nodes]}]}
        spec = {
            "serviceAccountName": _ACCOUNT,
            "restartPolicy": "Never",
            "hostPID": self.shares_processes,
            "containers": [base],
            "volumes": [{"name": each.name, "hostPath": {"path": str(each)}} for each in folders],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "tolerations": [{"key": key, "operator": "Exists"} for key in _TAINTS],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": spec}

    def evict(self, name: str, grace: int | None = None) -> None:
        """Ask for the eviction of a pod, as who drains its node does; `grace` seconds instead of its own."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        options = {"deleteOptions": {"gracePeriodSeconds": grace}} if grace is not None else {}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction"
        self.api.call("POST", path, {**eviction, **options})

    def worker(self, dag_id: str) -> dict[str, Any]:
        """The pod of the only worker that a DAG has now."""
        query = {"labelSelector": f"dag_id={dag_id},kubernetes_executor=True"}
        pods = self.api.list("Pod", self.namespace, query)["items"]
        (only,) = (
            pod
            for pod in pods
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        )
        return dict(only)
