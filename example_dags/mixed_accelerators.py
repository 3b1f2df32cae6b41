"""The same benchmark on different accelerators at once: one mapped task, a kind of machine an instance.

A decorated function can be mapped over its arguments only. `KineticOperator` can be mapped over its own
options too, with `expand` over one of them or `expand_kwargs` over several that belong together.
"""

from __future__ import annotations

from airflow.sdk import dag, task

from airflow_provider.operators.kinetic import KineticOperator

MACHINES = [
    {"accelerator": "cpu", "op_kwargs": {"size": 60}},
    {"accelerator": "gpu-l4", "op_kwargs": {"size": 80}},
    {"accelerator": "tpu-v5e-4", "op_kwargs": {"size": 100}},
]


def multiply(size: int) -> dict[str, object]:
    """Time a matrix product, in plain Python so that it runs wherever the job does."""
    import os
    import time

    matrix = [[(row * column) % 7 for column in range(size)] for row in range(size)]
    columns = list(zip(*matrix, strict=True))
    began = time.perf_counter()
    trace = sum(sum(map(int.__mul__, matrix[i], columns[i])) for i in range(size))
    seconds = time.perf_counter() - began
    print(f"{size} x {size} on {os.environ['KINETIC_ACCELERATOR']}: {seconds:.4f} s", flush=True)
    return {"machine": os.environ["KINETIC_ACCELERATOR"], "size": size, "trace": trace}


@dag(schedule=None, catchup=False, tags=["kinetic"])
def mixed_accelerators():
    """The same function on a CPU, a GPU and a TPU."""
    on_each = KineticOperator.partial(
        task_id="on_each", python_callable=multiply, map_index_template="{{ task.accelerator }}"
    ).expand_kwargs(MACHINES)
    same_size = KineticOperator.partial(
        task_id="same_size", python_callable=multiply, op_kwargs={"size": 50}
    ).expand(accelerator=["cpu", "gpu-l4"])

    @task
    def agree(results: list[dict[str, object]]) -> int:
        """All machines must compute the same."""
        (trace,) = {result["trace"] for result in results}
        return trace

    on_each >> same_size
    agree(same_size.output)


mixed_accelerators()
