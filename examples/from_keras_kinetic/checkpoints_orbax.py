"""Training that goes on where it ended, with Orbax: a fixed `output_dir`, the latest step first.

KINETIC_BACKEND=local python examples/from_keras_kinetic/checkpoints_orbax.py [DIRECTORY or gs://BUCKET/PREFIX]
"""

# /// script
# dependencies = ["jax", "orbax-checkpoint", "gcsfs"]
# ///
import os
import sys
import tempfile

import kinetic_core.compat as kinetic


def train(steps: int) -> tuple[int, float]:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(os.environ["KINETIC_OUTPUT_DIR"] + "/checkpoints") as manager:
        begun = manager.latest_step()
        state = {"weight": jnp.zeros(())}
        if begun is not None:
            state = manager.restore(begun, args=ocp.args.StandardRestore(state))
        for step in range(begun or 0, steps):
            state = {"weight": state["weight"] + 1.0}
            manager.save(step + 1, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    return begun or 0, float(state["weight"])


if __name__ == "__main__":
    output_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    run = kinetic.run(accelerator="cpu", output_dir=output_dir)
    print("first", run(train)(3))
    print("second", run(train)(5))
