"""A DAG a cell: each with a store of its own, a worker that can be stopped, a job that ends when told to."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

TABLE = json.loads(Path(__file__).with_name("cells.json").read_text())
"""Written by `matrix.stage`: the folder of all cells, the steps, the options of every DAG of this file."""


def work(folder: str) -> str:
    """The user's function: records its life, and lives until the file `go` is there.

    The lock tells two executions that live at once, however short the overlap: the kernel lets go of it
    when its holder is dead and not before.
    """
    import fcntl
    import json
    import os
    import time
    from pathlib import Path

    def note(event: str) -> None:
        line = json.dumps({"event": event, "pid": os.getpid(), "at": time.time()})
        os.write(journal, f"{line}\n".encode())

    place = Path(folder)
    journal = os.open(place / "journal", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    with (place / "live").open("w") as live:
        try:
            fcntl.flock(live, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("overlap")
        note("start")
        number = os.pread(journal, 10**6, 0).count(b'"start"')
        try:
            while not (place / "go").exists():
                time.sleep(0.1)
            if (place / "fail").exists() and number == 1:
                raise ValueError("the first execution fails")
        finally:
            note("end")
    return f"execution {number}"


def prepare_worker(context: Any) -> None:
    """Give this worker the cell's store, and stop it where the file `stop` says."""
    folder = Path(TABLE["folder"], context["ti"].dag_id)
    os.environ["KINETIC_LOCAL_STORE"] = str(folder / "kinetic")

    def hold(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.link", "os.remove"):
            return
        path = str(arguments[event == "os.link"])
        for step, (known, pattern) in TABLE["steps"].items():
            if event == known and re.search(pattern, path) and asked() == step:
                tell_of_kills()
                (folder / "reached").write_text(str(os.getpid()))
                while asked() == step:
                    time.sleep(0.05)
                if (folder / "raise").exists():
                    (folder / "raise").rename(folder / "raised")
                    raise RuntimeError("the worker's leg fails here")

    def tell_of_kills() -> None:
        """Note when Airflow kills the worker that is stopped, besides what it does about it."""
        before = signal.getsignal(signal.SIGTERM)

        def told(number: int, frame: Any) -> None:
            (folder / "told").touch()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, told)

    def asked() -> str:
        try:
            return (folder / "stop").read_text()
        except FileNotFoundError:
            return ""

    sys.addaudithook(hold)


def define(dag_id: str, options: dict[str, Any]) -> DAG:
    """The DAG of one cell."""
    timeouts = {name: timedelta(seconds=options[name]) for name in options if name.endswith("_timeout")}
    limits = {"dagrun_timeout": timeouts.pop("dagrun_timeout")} if "dagrun_timeout" in timeouts else {}
    with DAG(
        dag_id,
        schedule=options.get("schedule"),
        start_date=datetime(2026, 1, 2, tzinfo=UTC),
        catchup=False,
        **limits,
    ) as dag:
        task.kinetic(
            accelerator="cpu",
            backend="local",
            deferrable=options.get("deferrable", True),
            retries=options["retries"],
            retry_delay=timedelta(seconds=1),
            pre_execute=prepare_worker,
            **timeouts,
        )(work)(f"{TABLE['folder']}/{dag_id}")
    return dag


for each, its_options in TABLE["dags"].items():
    globals()[each] = define(each, its_options)
