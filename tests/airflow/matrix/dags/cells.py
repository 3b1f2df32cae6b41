"""A DAG a cell: each with a store of its own, a worker that can be stopped, a job that ends when told to."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperatorLink, task

TABLE = json.loads(Path(__file__).with_name("cells.json").read_text())
"""Written by `matrix.stage`: the folder of all cells, where jobs find theirs, the steps, and the options of
every DAG of this file."""


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


def work_in_pod(place: str) -> str:
    """As `work`, in a part of a bucket. Whether two live at once is seen by who watches the pods."""
    import json
    import os
    import time
    from urllib.error import HTTPError
    from urllib.parse import quote
    from urllib.request import urlopen

    bucket, _, folder = place.partition("/")
    objects = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/{bucket}/o"
    uploads = objects.replace("/storage/", "/upload/storage/", 1)

    def ask(url: str, content: bytes | None = None) -> bytes:
        """Again, if there is no answer: with another pod's former address, connecting may take minutes."""
        while True:
            try:
                with urlopen(url, content, timeout=5) as answer:
                    return answer.read()
            except HTTPError:
                raise
            except OSError:
                time.sleep(0.3)

    def note(event: str) -> None:
        name = quote(f"{folder}/journal/{time.time():.6f}-{event}", safe="")
        ask(f"{uploads}?uploadType=media&name={name}", b"-")

    def there(name: str) -> bool:
        try:
            ask(f"{objects}/{quote(f'{folder}/{name}', safe='')}")
        except HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True

    note("start")
    kept = json.loads(ask(f"{objects}?prefix={quote(f'{folder}/journal/', safe='')}"))["items"]
    number = sum(each["name"].endswith("-start") for each in kept)
    try:
        while not there("go"):
            time.sleep(0.3)
        if there("fail") and number == 1:
            raise ValueError("the first execution fails")
    finally:
        note("end")
    return f"execution {number}"


def subject(event: str, arguments: tuple[Any, ...]) -> str:
    """What an audited event is about: a path, or the beginning of what is sent."""
    if event == "http.client.send":
        return arguments[1][:2000].decode("latin-1") if isinstance(arguments[1], bytes) else ""
    return str(arguments[event == "os.link"])


def prepare_worker(context: Any) -> None:
    """Give this worker the cell's store, and stop it where the file `stop` says."""
    folder = Path(TABLE["folder"], context["ti"].dag_id)
    os.environ["KINETIC_LOCAL_STORE"] = str(folder / "kinetic")
    events = {known for known, _ in TABLE["steps"].values()}

    def hold(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in events or threading.current_thread() is not threading.main_thread():
            return
        about = subject(event, arguments)
        for step, (known, pattern) in TABLE["steps"].items():
            if event == known and re.search(pattern, about) and asked() == step:
                tell_of_kills()
                (folder / "reaching").write_text(str(os.getpid()))
                (folder / "reaching").rename(folder / "reached")
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


def nothing(context: Any) -> None:
    """A callback, for which a worker ends the task."""


class ReportedLink(BaseOperatorLink):
    """Nothing to click: a worker makes its links when Airflow has accepted what became of its task."""

    name = "reported"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        sys.audit("matrix.reported", "")
        return ""


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
        working = task.kinetic(
            task_id="work",
            accelerator="cpu",
            retries=options["retries"],
            retry_delay=timedelta(seconds=1),
            pre_execute=prepare_worker,
            on_success_callback=None if options.get("ended_by") == "trigger" else nothing,
            **{"deferrable": options.get("deferrable", True), **options["job"]},
            **timeouts,
        )(work if options["job"]["backend"] == "local" else work_in_pod)(f"{TABLE['data']}/{dag_id}")
        working.operator.operator_extra_links = (*working.operator.operator_extra_links, ReportedLink())
    return dag


for each, its_options in TABLE["dags"].items():
    globals()[each] = define(each, its_options)
