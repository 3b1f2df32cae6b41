"""What provisioning costs: requests against the stand-in for Google's APIs, in a project of its own."""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import Verdict, report, seconds

from kinetic_core.connections import default_connections
from kinetic_core.google_cloud import ask_google
from kinetic_core.provision.apply import apply
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.prepare import Prepared, open_cloud, prepare_down, prepare_up
from kinetic_core.provision.resources import Request
from kinetic_core.provision.specification import Wanted, WantedNamespace, wanted_pool

_READS = re.compile(r"^GET |:getIamPolicy|:testIamPermissions")
_POLLS = re.compile(r"/operations/")


class Counted:
    """Requests to Google's services, and changes inside the cluster."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def ask(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        self.lines.append(f"{method} {url}")
        return ask_google(default_connections(), method, url, body)

    @property
    def polls(self) -> int:
        return sum(bool(_POLLS.search(line)) for line in self.lines)

    @property
    def reads(self) -> int:
        return sum(bool(_READS.search(line)) for line in self.lines) - self.polls

    @property
    def changes(self) -> int:
        return len(self.lines) - self.reads - self.polls


class CountingCloud(Cloud):
    """Counts the requests to the cluster itself too."""

    counted: Counted

    def read(self, request: Request) -> Any:
        if request.service == "kubernetes":
            self.counted.lines.append(f"GET {request.path}")
        return super().read(request)

    def do(self, request: Request) -> None:
        if request.service == "kubernetes":
            self.counted.lines.append(f"{request.method} {request.path}")
        super().do(request)


def carry_out(prepare: Callable[[Cloud, Wanted], Prepared], wanted: Wanted) -> tuple[Counted, Prepared]:
    """A verb from the start, as a process of its own would."""
    opened, counted = open_cloud(default_connections()), Counted()
    cloud = CountingCloud(opened.location, opened.kubernetes, opened.empty, opened.connections, counted.ask)
    cloud.counted = counted
    prepared = prepare(cloud, wanted)
    apply(cloud, prepared, lambda _line: None)
    return counted, prepared


def measure() -> list[Verdict]:
    """On the test cluster only: it makes a cluster of the stand-in's, looks again, and removes it."""
    mark = secrets.token_hex(3)
    os.environ |= {"KINETIC_PROJECT": f"bench-{mark}", "KINETIC_CLUSTER": f"b-{mark}"}
    os.environ["KINETIC_PROFILES_FILE"] = str(Path(tempfile.mkdtemp(), "profiles.json"))
    # The stand-in has no Compute Engine; nothing answers there.
    os.environ["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"] = "http://127.0.0.1:9/"
    for name in ("KINETIC_KUBECONFIG", "KINETIC_BUCKET", "KINETIC_ZONE"):
        os.environ.pop(name, None)
    pools = (wanted_pool("tpu-v6e-8", spot=True), wanted_pool("gpu-t4"))
    spaces = (WantedNamespace(f"bench-{mark}"),)
    wanted = Wanted(f"bench-{mark}", "us-central1-a", f"b-{mark}", pools=pools, namespaces=spaces)
    try:
        first, prepared = carry_out(prepare_up, wanted)
        again: list[Counted] = []
        elapsed = seconds(lambda: again.append(carry_out(prepare_up, wanted)[0]))
    finally:
        carry_out(prepare_down, wanted)
    count = len(prepared.steps)
    return [
        Verdict("kinetic up: changes less resources", first.changes - count, 0, "", f"{count} resources"),
        Verdict("kinetic up: reads, polls of operations apart", first.reads, 2 * count, ""),
        Verdict("kinetic up again: changes", again[0].changes, 0, ""),
        Verdict("kinetic up again: reads", again[0].reads, 2 * count, ""),
        Verdict("kinetic up again: all of it", elapsed, 3.0, "s"),
    ]


if __name__ == "__main__":
    sys.exit(report(measure()))
