# /// script
# dependencies = ["torch"]
# ///
"""A PyTorch model on one GPU, or on what there is.

    python examples/pytorch_training.py

On a GPU PyPI's build with CUDA is installed, on `cpu` the one from PyTorch's CPU index. The model learns to
add two numbers written as bits; the state dictionary is written to the output directory.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import kinetic_core


def store(name: str, content: bytes) -> str:
    """Write a file to `KINETIC_OUTPUT_DIR`, a directory or `gs://bucket/prefix`; where it is."""
    place = f"{os.environ['KINETIC_OUTPUT_DIR'].rstrip('/')}/{name}"
    if place.startswith("gs://"):
        from google.cloud import storage

        storage.Blob.from_uri(place, storage.Client()).upload_from_string(content)
    else:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_bytes(content)
    return place


@kinetic_core.run(accelerator="gpu-l4", timeout=3600, retries=1)
def train(steps: int = 400, bits: int = 4, seed: int = 0) -> dict[str, float | str]:
    """Train for so many steps; the last loss, the share of sums that are right, the device."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    numbers = torch.cartesian_prod(torch.arange(2**bits), torch.arange(2**bits))
    powers = 2 ** torch.arange(bits + 1)
    words = torch.cat([(numbers[:, :1] & powers[:bits]) > 0, (numbers[:, 1:] & powers[:bits]) > 0], dim=1)
    inputs = words.float().to(device)
    targets = ((numbers.sum(dim=1, keepdim=True) & powers) > 0).float().to(device)

    model = nn.Sequential(nn.Linear(2 * bits, 128), nn.ReLU(), nn.Linear(128, bits + 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss_of = nn.BCEWithLogitsLoss()
    for step in range(steps):
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)

    right = ((model(inputs) > 0) == (targets > 0)).all(dim=1).float().mean().item()
    content = io.BytesIO()
    torch.save(model.state_dict(), content)
    return {
        "loss": loss.item(),
        "accuracy": right,
        "device": device.type,
        "weights": store("model.pt", content.getvalue()),
    }


if __name__ == "__main__":
    handle = train.run_async()
    print(handle.result(stream_logs=True))
    print([file.name for file in handle.outputs()])
