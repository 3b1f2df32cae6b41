"""Walk the whole table with this interpreter's Airflow, and write the page.

    python -m matrix RESULTS [PAGE]    RESULTS: a folder, a file for every version of Airflow that was walked

`MATRIX_PODS=1` runs the jobs as pods of the cluster of $KUBECONFIG, not as processes of this machine.
`MATRIX_EXECUTOR=celery` lets two Celery workers run the tasks, which needs redis-server and postgresql;
`kubernetes` lets pods of that cluster do so, beside the jobs, which needs postgresql and a cluster whose
nodes are this machine. Their image is built first, unless `MATRIX_WORKER_IMAGE` names that of another walk.
`MATRIX_DATABASE` may name an empty database of PostgreSQL for Airflow: SQLite gives up on a busy machine.
`MATRIX_AT_ONCE` is the number of cells that are walked at once, where their actions hit no others; 10.
Cells are chosen with `MATRIX=clear,edit-running` (actions or DAG ids), and the others kept as they were.
Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from matrix.cells import all_cells
from matrix.executors import SupervisedCelery, SupervisedKubernetes, worker_pods
from matrix.page import label, load, page, save
from matrix.places import Place
from matrix.pods import Pods
from matrix.processes import Processes
from matrix.verdict import Evidence, broken
from matrix.walk import SupervisedAirflow, walk


def main(results: Path, document: Path | None) -> int:
    """The exit code."""
    chosen = set(filter(None, os.environ.get("MATRIX", "").split(",")))
    executor = os.environ.get("MATRIX_EXECUTOR", "")
    table = all_cells(*filter(None, [executor]))
    cells = [cell for cell in table if not chosen or {cell.action.name, cell.dag_id} & chosen]
    results.mkdir(parents=True, exist_ok=True)

    def keep(version: str, seen: Evidence) -> None:
        """At once: a walk of hours may be broken off."""
        name = label(version, place.name, executor)
        save(results / f"airflow-{name}.json", name, [seen])

    with TemporaryDirectory(prefix="matrix-") as home:
        folder = Path(home).resolve()
        with _surroundings(executor, folder) as (place, kind):
            version, found = walk(folder, cells, place, kind=kind, keep=keep)
    version = label(version, place.name, executor)
    if document is not None:
        runs = dict(map(load, sorted(results.glob("airflow-*.json"), reverse=True)))
        document.write_text(page(runs))
    bad = [seen for seen in found if broken(seen)]
    print(f"Airflow {version}: {len(found)} cells, {len(bad)} with a broken promise")
    return 1 if bad else 0


@contextmanager
def _surroundings(executor: str, home: Path) -> Iterator[tuple[Place, Callable[..., SupervisedAirflow]]]:
    """Where the jobs run, and what makes the Airflow."""
    if executor == "kubernetes":
        with worker_pods(home / "image") as workers, closing(Pods(workers.namespace)) as pods:
            yield pods, partial(SupervisedKubernetes, workers=workers)
    else:
        kind = SupervisedCelery if executor == "celery" else SupervisedAirflow
        with closing(Pods() if os.environ.get("MATRIX_PODS") else Processes(home)) as place:
            yield place, kind


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
