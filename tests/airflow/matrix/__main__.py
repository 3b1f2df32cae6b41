"""Walk the whole table with this interpreter's Airflow, and write the page.

    python -m matrix RESULTS [PAGE]    RESULTS: a folder, a file for every version of Airflow that was walked

`MATRIX_PODS=1` runs the jobs as pods of the cluster of $KUBECONFIG, not as processes of this machine.
`MATRIX_EXECUTOR=celery` lets two Celery workers run the tasks, which needs redis-server and postgresql.
`MATRIX_DATABASE` may name an empty database of PostgreSQL for Airflow: SQLite gives up on a busy machine.
Cells are chosen with `MATRIX=clear,edit-running` (actions or DAG ids), and the others kept as they were.
Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from matrix.cells import all_cells
from matrix.page import label, load, page, save
from matrix.pods import Pods
from matrix.processes import Processes
from matrix.verdict import Evidence, broken
from matrix.walk import SupervisedAirflow, SupervisedCelery, walk

_KINDS = {"": SupervisedAirflow, "celery": SupervisedCelery}


def main(results: Path, document: Path | None) -> int:
    """The exit code."""
    chosen = set(filter(None, os.environ.get("MATRIX", "").split(",")))
    executor = os.environ.get("MATRIX_EXECUTOR", "")
    kind = _KINDS[executor]
    cells = [
        cell
        for cell in all_cells(celery=kind is SupervisedCelery)
        if not chosen or {cell.action.name, cell.dag_id} & chosen
    ]
    results.mkdir(parents=True, exist_ok=True)

    def keep(version: str, seen: Evidence) -> None:
        """At once: a walk of hours may be broken off."""
        name = label(version, place.name, executor)
        save(results / f"airflow-{name}.json", name, [seen])

    with TemporaryDirectory(prefix="matrix-") as home:
        folder = Path(home).resolve()
        place = Pods() if os.environ.get("MATRIX_PODS") else Processes(folder)
        try:
            version, found = walk(folder, cells, place, kind=kind, keep=keep)
        finally:
            place.close()
    version = label(version, place.name, executor)
    if document is not None:
        runs = dict(map(load, sorted(results.glob("airflow-*.json"), reverse=True)))
        document.write_text(page(runs))
    bad = [seen for seen in found if broken(seen)]
    print(f"Airflow {version}: {len(found)} cells, {len(bad)} with a broken promise")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
