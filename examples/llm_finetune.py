# /// script
# dependencies = ["jax", "flax", "optax", "orbax-checkpoint", "etils[epath-gcs]"]
# ///
"""Fine-tuning a language model with LoRA, with checkpoints that the next attempt goes on from.

    python examples/llm_finetune.py

The model reads characters and is tiny, and is first trained in the job on a text of its own, where a real one
would be loaded. Then its weights are frozen and only adapters learn another text. Orbax writes adapters and
optimizer to `KINETIC_OUTPUT_DIR`; an attempt, or another job with the same `output_dir`, begins at the last.

What is imported here must be installed here, too; other examples import inside the function.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx

import kinetic_core

LENGTH, WIDTH, RANK = 16, 32, 4
GENERAL = "the quick brown fox jumps over the lazy dog. " * 40
SPECIAL = "a job is one call of a function on the cluster. " * 40
BASE = nnx.All(nnx.Param, nnx.Not(nnx.LoRAParam))
"""The weights that are frozen while the adapters learn."""


class Layer(nnx.Module):
    """Attention to what came before, then two dense layers with adapters."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before, self.between = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.LoRALinear(WIDTH, 4 * WIDTH, lora_rank=RANK, rngs=rngs)
        self.down = nnx.LoRALinear(4 * WIDTH, WIDTH, lora_rank=RANK, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.before(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(jax.nn.gelu(self.up(self.between(x))))


class Model(nnx.Module):
    """Characters to the logits of the next one."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.characters = nnx.Embed(128, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.layers = nnx.Sequential(Layer(rngs), Layer(rngs))
        self.out = nnx.Linear(WIDTH, 128, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        return self.out(self.layers(self.characters(text) + self.places(jnp.arange(LENGTH))))


def windows(text: str, step: int) -> jax.Array:
    """A batch of pieces of the text: the same for the same step, so that an attempt repeats nothing else."""
    codes = jnp.array([ord(character) for character in text])
    begins = jax.random.randint(jax.random.key(step), (16,), 0, len(text) - LENGTH - 1)
    return jax.vmap(lambda begin: jax.lax.dynamic_slice(codes, (begin,), (LENGTH + 1,)))(begins)


def learn(model: Model, optimizer: nnx.Optimizer, wrt: Any, batch: jax.Array) -> jax.Array:
    """One step on what `wrt` selects; the loss."""

    def loss_of(model: Model) -> jax.Array:
        logits = model(batch[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

    loss, gradients = nnx.value_and_grad(loss_of, argnums=nnx.DiffState(0, wrt))(model)
    optimizer.update(model, gradients)
    return loss


def base_model(steps: int = 100) -> Model:
    """Where a real model would be loaded, from a `Data` for instance."""
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=BASE)
    step = nnx.jit(learn, static_argnums=2)
    for number in range(steps):
        loss = step(model, optimizer, BASE, windows(GENERAL, number))
    print(f"base model: loss {float(loss):.3f}", flush=True)
    return model


@kinetic_core.run(accelerator="tpu-v5e-1", spot=True, timeout=7200, retries=2)
def finetune(steps: int, every: int = 20) -> dict[str, Any]:
    """Train the adapters up to that step, with a checkpoint every so many; where it began, and the losses."""
    model = base_model()
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.LoRAParam)
    step = nnx.jit(learn, static_argnums=2)
    losses = {}
    with ocp.CheckpointManager(f"{os.environ['KINETIC_OUTPUT_DIR']}/checkpoints") as checkpoints:
        begun_at = checkpoints.latest_step() or 0
        if begun_at:
            kept = nnx.state((model, optimizer), nnx.Any(nnx.LoRAParam, nnx.OptState))
            restored = checkpoints.restore(begun_at, args=ocp.args.StandardRestore(nnx.to_pure_dict(kept)))
            nnx.replace_by_pure_dict(kept, restored)
            nnx.update((model, optimizer), kept)
        for number in range(begun_at + 1, steps + 1):
            loss = step(model, optimizer, nnx.LoRAParam, windows(SPECIAL, number))
            if number % every == 0 or number == steps:
                losses[number] = round(float(loss), 3)
                kept = nnx.state((model, optimizer), nnx.Any(nnx.LoRAParam, nnx.OptState))
                checkpoints.save(number, args=ocp.args.StandardSave(nnx.to_pure_dict(kept)))
                print(f"step {number}: loss {losses[number]}", flush=True)
    return {"begun_at": begun_at, "losses": losses}


def main() -> None:
    """A run, and one that goes on where it ended, as an attempt after a preemption does."""
    place = os.environ.get("KINETIC_OUTPUT_DIR") or tempfile.mkdtemp(prefix="finetune-")
    there = kinetic_core.run(accelerator="tpu-v5e-1", spot=True, timeout=7200, output_dir=place)
    again = there(finetune.__wrapped__)
    print("first:", again(20, every=10))
    print("then:", again(40, every=10))


if __name__ == "__main__":
    main()
