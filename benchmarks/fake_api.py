"""An API server over TLS that holds queued Jobs and counts what it is asked; in a process of its own.

    python fake_api.py FOLDER JOBS    writes FOLDER/kubeconfig and FOLDER/ready, and serves until it is killed

It is no FakeCluster: nothing ever happens in it, so that it leaves the machine to those who wait.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = tuple[int, Any]
DEPLOYMENT = "bench"
"""The Airflow of which all jobs are."""


def job_id(number: int) -> str:
    return f"job-{number:016x}"


def origin(number: int) -> dict[str, Any]:
    """The task instance that asked for it, as the provider writes it down: one of a mapped task."""
    return {
        "deployment": DEPLOYMENT,
        "dag_id": "bench",
        "run_id": "manual",
        "task_id": "mapped",
        "map_index": number,
    }


def queued_job(number: int) -> dict[str, Any]:
    """A Job that Kueue has suspended: it waits for its turn and has no pods."""
    labels = {"app": "kinetic", "kinetic.dev/job-id": job_id(number), "kueue.x-k8s.io/queue-name": "gpus"}
    name = f"kinetic-{job_id(number)}"
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "resourceVersion": "1",
        "labels": labels,
        "annotations": {"kinetic.dev/origin": json.dumps(origin(number))},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    containers = [
        {
            "name": "c",
            "image": "python:3.12",
            "env": [{"name": f"V{i}", "value": "x" * 40} for i in range(20)],
        }
    ]
    spec = {"suspend": True, "template": {"spec": {"containers": containers}}}
    return {"kind": "Job", "metadata": metadata, "spec": spec, "status": {}}


def is_selected(labels: dict[str, str], selector: str) -> bool:
    """Whether labels are as a selector wants them: `name=value`, `name`, or `!name`, with commas between."""
    for wanted in filter(None, selector.split(",")):
        name, _, value = wanted.lstrip("!").partition("=")
        if (name in labels) is wanted.startswith("!") or (value and labels[name] != value):
            return False
    return True


class Server:
    """The paths that watchers and pollers ask for."""

    def __init__(self, jobs: int) -> None:
        self._jobs = {f"kinetic-{job_id(number)}": queued_job(number) for number in range(jobs)}
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                url = urlsplit(head.split(b" ", 2)[1].decode())
                query = {name: values[-1] for name, values in parse_qs(url.query).items()}
                if query.get("watch") == "true":
                    await self._watch(writer, float(query["timeoutSeconds"]))
                else:
                    self._reply(writer, self._answer(url.path, query))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has hung up
        finally:
            writer.close()

    def _answer(self, path: str, query: dict[str, str]) -> Answer:
        if path == "/asked":
            return 200, self.asked
        self.asked += 1
        *_, kind, name = path.split("/")
        if kind == "jobs":
            return 200, self._jobs[name]
        jobs = self._jobs.values() if name == "jobs" else ()
        selector = query.get("labelSelector", "")
        items = [job for job in jobs if is_selected(job["metadata"]["labels"], selector)]
        begin = int(query.get("continue") or 0)
        end = begin + int(query.get("limit") or len(items))
        facts = {"resourceVersion": "1", "continue": str(end) if items[end:] else ""}
        return 200, {"metadata": facts, "items": items[begin:end]}

    async def _watch(self, writer: asyncio.StreamWriter, seconds: float) -> None:
        self.asked += 1
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await writer.drain()
        await asyncio.sleep(seconds)
        line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n'
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(line), line))

    def _reply(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        status, content = answer
        body = json.dumps(content).encode()
        head = (
            f"HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    made, key = folder / "cert.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=127.0.0.1",
    ]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return made, key


async def main(folder: Path, jobs: int) -> None:
    made, key = certificate(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made, key)
    server = await asyncio.start_server(Server(jobs).serve, "127.0.0.1", 0, ssl=context, backlog=512)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    authority = base64.b64encode(made.read_bytes()).decode()
    cluster = {"name": "fake", "cluster": {"server": url, "certificate-authority-data": authority}}
    user = {"name": "fake", "user": {"token": "none"}}
    context_of = {"name": "fake", "context": {"cluster": "fake", "user": "fake"}}
    config = {"clusters": [cluster], "users": [user], "contexts": [context_of], "current-context": "fake"}
    (folder / "kubeconfig").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    (folder / "ready").write_text(url)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
