"""Training that goes on where it ended, with a model of Keras that is saved and loaded.

KINETIC_BACKEND=local python examples/from_keras_kinetic/checkpoints_keras.py
"""

# /// script
# dependencies = ["jax", "keras"]
# ///
import os
import sys
import tempfile
from pathlib import Path

import kinetic_core.compat as kinetic


def train(epochs: int) -> tuple[bool, int]:
    import keras
    import numpy as np

    saved = os.environ["KINETIC_OUTPUT_DIR"] + "/model.keras"
    goes_on = Path(saved).exists()
    if goes_on:
        model = keras.saving.load_model(saved)
    else:
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    x = np.arange(32.0).reshape(32, 1)
    model.fit(x, 2 * x, epochs=epochs, verbose=0)
    model.save(saved)
    return goes_on, int(model.optimizer.iterations)


if __name__ == "__main__":
    output_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    run = kinetic.run(accelerator="cpu", output_dir=output_dir)
    print("first", run(train)(1))
    print("second", run(train)(1))
