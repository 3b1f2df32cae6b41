# /// script
# dependencies = ["jax", "flax", "optax"]
# ///
"""A Flax model trained with Optax on one TPU chip; on this machine with `KINETIC_BACKEND=local`.

    python examples/jax_training.py

The block above says what the job needs installed: on a TPU, `jax` becomes `jax[tpu]`. Two interleaved
spirals are the data, so that nothing is downloaded and a plain linear model could not do it.
"""

from __future__ import annotations

import kinetic_core


@kinetic_core.run(accelerator="tpu-v5e-1", timeout=3600, retries=1)
def train(steps: int = 600, rate: float = 1e-2, seed: int = 0) -> dict[str, float | str]:
    """Train for so many steps; the last loss, the share of points that are classified rightly, the device."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layers = nnx.Sequential(
                nnx.Linear(2, 32, rngs=rngs),
                jax.nn.tanh,
                nnx.Linear(32, 32, rngs=rngs),
                jax.nn.tanh,
                nnx.Linear(32, 2, rngs=rngs),
            )

        def __call__(self, points: jax.Array) -> jax.Array:
            return self.layers(points)

    turn = jnp.linspace(0.5, 2.5, 200) * jnp.pi
    arm = jnp.stack([turn * jnp.cos(turn), turn * jnp.sin(turn)], axis=1) / 8
    points, labels = jnp.concatenate([arm, -arm]), jnp.repeat(jnp.arange(2), 200)

    network = Network(nnx.Rngs(seed))
    optimizer = nnx.Optimizer(network, optax.adam(rate), wrt=nnx.Param)

    @nnx.jit
    def step(network: Network, optimizer: nnx.Optimizer) -> jax.Array:
        def loss_of(model: Network) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(points), labels).mean()

        loss, gradients = nnx.value_and_grad(loss_of)(network)
        optimizer.update(network, gradients)
        return loss

    loss = jnp.inf
    for number in range(steps):
        loss = step(network, optimizer)
        if number % 100 == 0:
            print(f"step {number}: loss {float(loss):.4f}", flush=True)
    right = (network(points).argmax(axis=1) == labels).mean()
    return {"loss": float(loss), "accuracy": float(right), "device": jax.devices()[0].platform}


if __name__ == "__main__":
    print(train())
