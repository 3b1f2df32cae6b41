"""Airflows that keep their logs in S3 or in Azure, of which no component sees the files of another."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from demo_airflow import DemoAirflow
from demo_processes import free_ports, start

_NAME = "airflow-logs"
"""Bucket or container of the logs."""
_ACCOUNT = "ours"
_CONN_ID = "logs"
_SECONDS = 600.0


def azurite() -> str:
    """Return the program that serves Azure's blobs, "" if it is not installed."""
    beside = Path(sys.prefix, "node_modules", ".bin", "azurite-blob")
    return str(beside) if beside.exists() else shutil.which("azurite-blob") or ""


class LogStore(ABC):
    """Stand-in for a cloud's store of objects, on a free port of this machine."""

    settings: Mapping[str, str]
    """Where Airflow's components find their log folder, for their environment."""
    environment: Mapping[str, str] = {}
    """What the stand-in itself needs in its environment."""

    def __init__(self) -> None:
        (self._port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{self._port}"

    @property
    @abstractmethod
    def connection(self) -> dict[str, Any]:
        """Return the Airflow connection of the store, without its id."""

    @abstractmethod
    def command(self, folder: Path) -> list[str]:
        """Return the command that serves the store, which may keep its files in a folder."""

    @abstractmethod
    def make(self) -> None:
        """Make the bucket or container. Raises an error while nobody serves the store."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all objects."""


class S3(LogStore):
    """Amazon's, by moto."""

    settings: Mapping[str, str] = {"AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": f"s3://{_NAME}/ours"}

    @property
    def connection(self) -> dict[str, Any]:
        extra = json.dumps({"endpoint_url": self._url, "region_name": "us-east-1"})
        return {"conn_type": "aws", "login": "anybody", "password": "anything", "extra": extra}

    def command(self, folder: Path) -> list[str]:
        del folder
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]

    def make(self) -> None:
        self._client.create_bucket(Bucket=_NAME)

    def names(self) -> list[str]:
        return [each["Key"] for each in self._client.list_objects_v2(Bucket=_NAME).get("Contents", [])]

    @cached_property
    def _client(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": "anybody", "aws_secret_access_key": "anything"}
        return boto3.client("s3", endpoint_url=self._url, region_name="us-east-1", **keys)


class Azure(LogStore):
    """Azure's blobs, by Azurite."""

    settings: Mapping[str, str] = {
        "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": "wasb-ours",
        "AIRFLOW__AZURE_REMOTE_LOGGING__REMOTE_WASB_LOG_CONTAINER": _NAME,
    }

    def __init__(self) -> None:
        super().__init__()
        self._key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.environment = {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{self._key}"}

    @property
    def connection(self) -> dict[str, Any]:
        return {"conn_type": "wasb", "extra": json.dumps({"connection_string": self._connection_string})}

    def command(self, folder: Path) -> list[str]:
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return [azurite(), "--blobPort", str(self._port), "--location", str(folder), *quiet]

    def make(self) -> None:
        self._container.create_container()

    def names(self) -> list[str]:
        return [blob.name for blob in self._container.list_blobs()]

    @property
    def _connection_string(self) -> str:
        account = f"AccountName={_ACCOUNT};AccountKey={self._key}"
        return f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={self._url}/{_ACCOUNT}"

    @cached_property
    def _container(self) -> Any:
        from azure.storage.blob import ContainerClient

        return ContainerClient.from_connection_string(self._connection_string, _NAME, retry_total=0)


@dataclass
class ApartAirflow(DemoAirflow):
    """Airflow as on machines of their own: each component, whenever it starts, has an empty disk for logs.

    The connection of its remote logs is in its database, as a person makes it.
    """

    store: LogStore = field(kw_only=True)
    starts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__post_init__()
        remote = {"REMOTE_LOGGING": "True", "REMOTE_LOG_CONN_ID": _CONN_ID}
        self.environment |= {f"AIRFLOW__LOGGING__{name}": value for name, value in remote.items()}
        self.environment |= self.store.settings

    def start(self, say: Callable[[str], object] = lambda _: None, timeout: float = _SECONDS) -> None:
        environment = {**self.environment, **self.store.environment}
        command = self.store.command(self.home / "store")
        self.processes["store"] = start(self.home, "store", command, environment)
        self.until(self._has_bucket, timeout, "the store of logs to answer")
        super().start(say, timeout)
        self.api.call("POST", "/connections", {"connection_id": _CONN_ID, **self.store.connection})

    def _has_bucket(self) -> bool:
        try:
            self.store.make()
        except Exception:  # each client has its own errors
            return False
        return True

    def start_component(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        self.starts[name] += 1
        own = {"AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.disk(name))}
        command = [sys.executable, "-P", "-m", "airflow", name, *arguments]
        self.processes[name] = start(self.home, name, command, {**self.environment, **own})
        return self.processes[name]

    def disk(self, name: str) -> Path:
        """Return the folder of logs of the component that was started last under a name."""
        return self.home / "disks" / f"{name}-{self.starts[name]}"

    def start_second_triggerer(self) -> subprocess.Popen[bytes]:
        """Start one beside another, which has its port: the API server cannot ask the second for its log."""
        known = self.environment
        self.environment = {**known, "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_ports(1)[0])}
        try:
            return self.start_component("triggerer")
        finally:
            self.environment = known

    def lose_triggerer(self) -> None:
        """Kill the triggerer with all its processes, among them the one that serves its log."""
        process = self.processes.pop("triggerer")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(90)
