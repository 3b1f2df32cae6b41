# /// script
# dependencies = ["keras", "jax"]
# ///
"""A Keras model, trained on JAX.

    python examples/keras_training.py

Pictures of horizontal and vertical bars in noise are made in the job. The trained weights come back as numpy
arrays: they are the function's value, and small; large ones belong in `KINETIC_OUTPUT_DIR`.
"""

from __future__ import annotations

from typing import Any

import kinetic_core


@kinetic_core.run(accelerator="tpu-v5e-1", timeout=3600)
def train(epochs: int = 4, seed: int = 0) -> dict[str, Any]:
    """Loss of each epoch, accuracy on pictures that were not trained on, and the model's weights."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(seed)

    def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
        made = np.random.normal(0, 0.3, (count, 12, 12, 1)).astype("float32")
        labels = np.random.randint(0, 2, count)
        for picture, label, place in zip(made, labels, np.random.randint(0, 12, count), strict=True):
            (picture[place, :] if label else picture[:, place])[...] += 1
        return made, labels

    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.GlobalMaxPooling2D(),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(*pictures(1024), epochs=epochs, verbose=2)
    _, accuracy = model.evaluate(*pictures(512), verbose=0)
    losses = [float(loss) for loss in history.history["loss"]]
    return {"losses": losses, "accuracy": float(accuracy), "weights": model.get_weights()}


if __name__ == "__main__":
    trained = train()
    print(f"losses {trained['losses']}, accuracy {trained['accuracy']:.2f}")
    print("shapes", [array.shape for array in trained["weights"]])
