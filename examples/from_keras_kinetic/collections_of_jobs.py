"""One function over many inputs: in order, as they end, with failures, found again by id.

KINETIC_BACKEND=local python examples/from_keras_kinetic/collections_of_jobs.py
"""

import kinetic_core.compat as kinetic
from kinetic_core.compat.collections import map as map_over


@kinetic.run(accelerator="cpu")
def evaluate(rate: float, layers: int = 1) -> float:
    if layers < 1:
        raise ValueError("a network has layers")
    return rate * layers


if __name__ == "__main__":
    grid = [{"rate": 0.1, "layers": 2}, {"rate": 0.2}, {"rate": 0.3, "layers": 0}]
    batch = map_over(evaluate.run_async, grid, name="grid", tags={"team": "vision"}, max_concurrent=2)
    same = kinetic.attach_batch(batch.group_id)
    print("ended", sorted(job.group_index or 0 for job in same.as_completed(timeout=600)))
    try:
        batch.results()
    except kinetic.BatchError as error:
        print("failed", [job.group_index for job in error.failures], "partial", error.partial_results)
    print("kinds", [type(each).__name__ for each in batch.results(return_exceptions=True)])
    batch.cleanup()
