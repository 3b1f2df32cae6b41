"""Several kinds of hardware in one program: prepare on a CPU, train on an accelerator, evaluate on a CPU.

KINETIC_BACKEND=local python examples/from_keras_kinetic/mixed_accelerators.py [ACCELERATOR]
"""

import sys

import kinetic_core.compat as kinetic

ACCELERATOR = sys.argv[1] if len(sys.argv) > 1 else "cpu"


@kinetic.run(accelerator="cpu")
def prepare(rows: int) -> list[float]:
    return [float(row) for row in range(rows)]


@kinetic.run(accelerator=ACCELERATOR)
def train(rows: list[float]) -> float:
    return sum(rows) / len(rows)


@kinetic.run(accelerator="cpu")
def evaluate(rows: list[float], model: float) -> float:
    return max(abs(row - model) for row in rows)


if __name__ == "__main__":
    rows = prepare(11)
    print("error", evaluate(rows, train(rows)))
