"""Training that goes on where it ended, with a model of Keras that is saved and loaded.

KINETIC_BACKEND=local python examples/from_keras_kinetic/checkpoints_keras.py [DIRECTORY or gs://BUCKET/PREFIX]
"""

# /// script
# dependencies = ["jax", "keras", "gcsfs"]
# ///
import os
import sys
import tempfile
from pathlib import Path

import kinetic_core.compat as kinetic


def train(epochs: int) -> tuple[bool, int]:
    import fsspec
    import keras
    import numpy as np

    files, folder = fsspec.core.url_to_fs(os.environ["KINETIC_OUTPUT_DIR"])
    saved, here = f"{folder}/model.keras", str(Path(tempfile.mkdtemp(), "model.keras"))
    goes_on = files.exists(saved)
    if goes_on:
        files.get(saved, here)
        model = keras.saving.load_model(here)
    else:
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    x = np.arange(32.0).reshape(32, 1)
    model.fit(x, 2 * x, epochs=epochs, verbose=0)
    model.save(here)
    files.put(here, saved)
    return goes_on, int(model.optimizer.iterations)


if __name__ == "__main__":
    output_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    run = kinetic.run(accelerator="cpu", output_dir=output_dir)
    print("first", run(train)(1))
    print("second", run(train)(1))
