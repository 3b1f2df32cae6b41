"""The page without Airflow: its files as they are, and answers that are the same on every machine."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import chromium

from airflow_provider import ui

STATIC = Path(ui.__file__).parent / "static"
_PHASES = {"queue": 3.0, "scale-up": 45.0, "image": 20.0, "start": 4.0, "function": 120.0, "result": 1.0}
_ENDS = (
    ("RUNNING", "", ""),
    ("SUCCEEDED", "", "the outcome is committed"),
    ("FAILED", "user error", "ValueError: shard 3 is corrupt"),
    ("PENDING", "FailedScheduling", "0/4 nodes are available: 4 Insufficient google.com/tpu"),
    ("FAILED", "out of memory", "killed at 31.8 GiB of 32 GiB"),
    ("NO_JOB", "airflow scheduler", "it waits for a free slot of pool 'default_pool'"),
)


def job(index: int) -> dict[str, Any]:
    """Row of the `index`-th mapped task."""
    status, reason, message = _ENDS[index % len(_ENDS)]
    task_state = {"SUCCEEDED": "success", "FAILED": "failed", "NO_JOB": "scheduled"}.get(status, "deferred")
    told = {
        "dag_id": "training",
        "run_id": "manual__2026-11-23T13:00:00+00:00",
        "task_id": "train_a_model",
        "map_index": index,
        "label": "",
        "task_state": task_state,
        "try_number": 1,
        "status": status,
        "reason": reason,
        "message": message,
        "phases": [],
        "waited": None,
        "ran": None,
        "earlier": [],
    }
    if status == "NO_JOB":
        return told | {"waited": 370.0}
    phases = [
        {"name": name, "attempt": 0, "began": 1e9, "seconds": seconds * (1 + index % 4)}
        for name, seconds in _PHASES.items()
    ]
    return told | {
        "job_id": f"job-{index:016x}",
        "job_try": 1,
        "function": "train_a_model",
        "accelerator": "tpu-v6e-8",
        "hosts": 2,
        "attempts": 1,
        "backend": "gke",
        "created_at": "2026-11-23T13:00:00Z",
        "phases": phases if status != "PENDING" else phases[:2],
        "waited": sum(each["seconds"] for each in phases[:3]),
        "ran": sum(each["seconds"] for each in phases[3:]) if status != "PENDING" else 0.0,
        "chip_seconds": 960.0,
        "cost": None if status == "PENDING" else 1.25,
    }


SILENT = 7
"""Map index of a job that succeeded and printed nothing, in a store that no new shell finds."""
WARM = 13
"""Map index of a job that is a call on a warm worker."""
WORKER = {
    "job_id": "job-00000000000000bb",
    "state": "idle",
    "calls": 3,
    "idle_seconds": 600.0,
    "phases": [
        {"name": "image", "attempt": 0, "began": 1e9, "seconds": 20.0},
        {"name": "idle", "attempt": 0, "began": 1e9 + 20, "seconds": 340.0},
    ],
}
ADVICE = "`kinetic pool add --accelerator tpu-v6e-8`: no pool of the cluster has it"
"""What to do, as the server says it."""


def earlier(index: int) -> list[dict[str, Any]]:
    """How the attempts before a failed one ended: a job of the try before, an attempt whose pod is gone."""
    text = "ValueError: shard 3 is <img src=x>"
    first = {"try_number": 1, "job_id": "job-of-try-1", "status": "FAILED", "reason": "user error"}
    lost = {"try_number": 2, "job_id": f"job-{index:016x}", "status": "UNKNOWN", "reason": ""}
    return [first | {"message": text}, lost | {"attempt": 0, "message": "its pod is gone"}]


def detail(index: int) -> dict[str, Any]:
    """Answer about one job: a failed one with its traceback, and the attempts before."""
    lines = [f"step {number}: loss {1 / number:.3f}" for number in range(1, 40)]
    told = job(index)
    trace = 'Traceback (most recent call last):\n  File "training.py", line 31, in train_a_model\n'
    trace += "    shard = read(number)\nValueError: shard 3 is corrupt\n"
    has_failed = told["status"] == "FAILED"
    silence = "it printed nothing" if index == SILENT else "no line is stored yet"
    if has_failed:
        told |= {"try_number": 2, "job_try": 2, "attempts": 2, "earlier": earlier(index)}
    return told | {
        "traceback": trace if has_failed else "",
        "links": [{"name": "Job", "address": "https://console.cloud.google.com/kubernetes/job"}],
        "namespace": "default",
        "image": "registry.example/team/training:2026-11-23",
        "environment": "KINETIC_LOCAL_STORE='/home/jan/my store'" if index == SILENT else "",
        "log": [] if index == SILENT else lines,
        "silence": silence,
        "worker": WORKER if index == WARM else None,
        "outputs": [{"name": "model.ckpt", "size": 7_340_032}],
        "troubles": [],
        "advice": ADVICE if told["status"] == "PENDING" else "",
        "currency": "EUR",
        "may_cancel": told["status"] in ("RUNNING", "PENDING"),
    }


BATCH = "embed_the_corpus"
"""Task of which all inputs are one batch."""
INPUTS = 10_000
_GROUP = "grp-00000000000000aa"


def batch() -> dict[str, Any]:
    """Row of a task with a batch, most of whose inputs have ended."""
    told = job(0) | {"task_id": BATCH, "map_index": -1, "phases": [], "chip_seconds": 0.0, "cost": None}
    told |= {"waited": 60.0, "ran": 840.0}
    return told | {"job_id": _GROUP, "hosts": 1, "inputs": INPUTS, "message": f"{INPUTS} inputs"}


def squares() -> str:
    """A letter for each input."""
    ended = ("f" if index % 97 == 5 else "s" for index in range(7000))
    return "".join(ended) + "r" * 64 + "w" * 2500 + "c" * 100 + "." * (INPUTS - 9664)


def board() -> dict[str, Any]:
    """Answer about the batch."""
    drawn = squares()
    failed = [index for index, letter in enumerate(drawn) if letter == "f"]
    text = "ValueError: the document has no text: <img src=x>"
    causes = [
        {"text": text, "reason": "user error", "count": len(failed) - 2, "inputs": failed[:10]},
        {"text": "killed at 15.9 GiB", "reason": "out of memory", "count": 2, "inputs": failed[10:12]},
    ]
    counts = {letter: drawn.count(letter) for letter in "sfrwc."}
    more = {"namespace": "default", "image": "registry.example/team/embed:2026-11-23", "may_cancel": True}
    told = {"offset": 0, "squares": drawn, "counts": counts, "causes": causes, "troubles": []}
    return batch() | told | more


def input_of_batch(index: int) -> dict[str, Any]:
    """Answer about one input."""
    told = {"index": index, "job_id": f"{_GROUP}-{index}", "attempts": 2, "status": "FAILED", "advice": ""}
    told |= {"reason": "user error", "message": "ValueError: the document has no text: <img src=x>"}
    trace = "Traceback (most recent call last):\nValueError: the document has no text: <img src=x>\n"
    return told | {"traceback": trace, "log": ["reading", "embedding"], "outputs": [], "troubles": []}


RUNS = 10
"""Runs in the history of a task; the third one failed."""


def history() -> list[dict[str, Any]]:
    """What the runs of a task took, the oldest first."""
    return [
        {
            "run_id": f"scheduled__2026-11-{14 + number}T13:00:00+00:00",
            "jobs": 1,
            "failed": int(number == 2),
            "are_batches": False,
            "ran": 120.0 + 30 * (number * 7 % 5),
            "waited": 20.0 * (number * 3 % 4),
            "chip_seconds": 960.0,
            "core_seconds": 0.0,
            "cost": 1.25 + number / 10,
        }
        for number in range(RUNS)
    ]


def of_runs() -> list[dict[str, Any]]:
    """Rows of one task, two of each run; the runs began within seconds."""
    names = [f"manual__2026-11-23T13:00:0{number}.481516+00:00" for number in range(10)]
    return [
        job(2 * number + index) | {"run_id": name, "map_index": index}
        for number, name in enumerate(names)
        for index in (0, 1)
    ]


def listing(query: Mapping[str, list[str]], *, is_of_task: bool = False) -> dict[str, Any]:
    """Answer about the jobs of a run, twenty-four or the one that is asked for, or of a task in its runs."""
    indexes = [int(text) for text in query.get("map_index", [])] or range(24)
    jobs = [batch()] if query.get("task_id") == [BATCH] else [job(index) for index in indexes]
    jobs = of_runs() if is_of_task else jobs
    statuses = {status: sum(each["status"] == status for each in jobs) for status, _, _ in _ENDS}
    groups = {
        "dag_id": [{"name": "training", "jobs": 20, "cost": 25.0}],
        "accelerator": [{"name": "tpu-v6e-8", "jobs": 20, "cost": 25.0}],
    }
    return {
        "jobs": jobs,
        "groups": groups,
        "history": history(),
        "total": len(jobs),
        "statuses": {status: number for status, number in statuses.items() if number},
        "reasons": {each["reason"]: 4 for each in jobs if each["reason"]},
        "running": False,
        "chip_seconds": 19200.0,
        "core_seconds": 320.0,
        "cost": 25.0,
        "currency": "EUR",
        "troubles": [],
        "at": 1e9,
    }


def answer(path: str, query: Mapping[str, list[str]]) -> dict[str, Any]:
    """Answer to a question of the page."""
    kind, last = path.split("/")[-2:]
    if kind == "inputs":
        return input_of_batch(int(last))
    if kind == "batches":
        return board()
    if last.startswith("job-"):
        return detail(int(last[4:], 16))
    return listing(query, is_of_task="/tasks/" in path)


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if not asked.path.startswith("/kinetic/api/"):
            self.path = asked.path.removeprefix("/kinetic/page")
            super().do_GET()
            return
        body = json.dumps(answer(asked.path, parse_qs(asked.query))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def frame() -> Iterator[str]:
    """The address of the page, served from here."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(STATIC)))
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/kinetic/page/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_SMALL = """(async () => {
  const image = new Image();
  image.src = "data:image/png;base64,%s";
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 48, height: 36 });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, 48, 36);
  const told = [canvas.toDataURL("image/png").split(",")[1]];
  told.push([...context.getImageData(0, 0, 48, 36).data].filter((_, place) => place %% 4 !== 3));
  return told;
})()"""


def small(tab: chromium.Tab, picture: bytes) -> tuple[bytes, list[int]]:
    """The picture at 48 × 36 points, where letters are grey and fonts alike: as PNG, and as its colours."""
    encoded, colours = tab.ask(_SMALL % base64.b64encode(picture).decode())
    return base64.b64decode(encoded), colours
