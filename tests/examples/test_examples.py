"""Every example runs as its first lines say, here, with the frameworks of `.ci/locks/examples.txt`."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents.typed import WITH_JAX, misfits

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.examples


def run(name: str, tmp_path: Path) -> list[str]:
    """What the example prints, line by line."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,  # one of them downloads what its job wrote
        env={**os.environ, "KINETIC_BACKEND": "local", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def value(line: str, after: str = "") -> Any:
    assert line.startswith(after), line
    return ast.literal_eval(line.removeprefix(after))


@pytest.mark.promise("command: Examples (scripts, a notebook) run CPU-sized in CI")
def test_every_example_has_a_test() -> None:
    tested = {name for name in Path(__file__).read_text().split('"') if name.endswith((".py", ".ipynb"))}
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert there == tested - {".py", ".ipynb"}


@pytest.mark.promise("batches: Resume from checkpoint: example, evicted through the eviction API")
def test_checkpoints(tmp_path: Path) -> None:
    assert value(run("checkpointed_training.py", tmp_path)[-2])["step"] == 200


@pytest.mark.promise("command: JAX/Flax, PyTorch, Keras training; LLM fine-tune with checkpoints")
def test_jax(tmp_path: Path) -> None:
    trained = value(run("jax_training.py", tmp_path)[-1])
    assert trained["accuracy"] > 0.9
    assert trained["device"] == "cpu"


@pytest.mark.promise("command: JAX/Flax, PyTorch, Keras training; LLM fine-tune with checkpoints")
def test_keras(tmp_path: Path) -> None:
    told, shapes = run("keras_training.py", tmp_path)[-2:]
    assert float(told.rpartition(" ")[2]) > 0.8
    assert value(shapes, "shapes ")[-1] == (2,)


FIRST = """
import kinetic_core as kinetic
import numpy as np

x_train, y_train = np.arange(64.0).reshape(64, 1), np.arange(64.0) * 2

@kinetic.run(accelerator="tpu-v6e-8")
def train_model():
    import keras
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x_train, y_train, verbose=0)
    return model.history.history["loss"][-1]

final_loss = train_model()
print(final_loss)
"""
"""What users saw first of it, with what it leaves to them filled in."""


@pytest.mark.promise("data: The brief's first example runs")
def test_the_first_thing_that_was_promised(tmp_path: Path) -> None:
    script = (tmp_path / "first").with_suffix(".py")
    script.write_text(FIRST)
    assert float(run(str(script), tmp_path)[-1]) > 0


@pytest.mark.promise("command: JAX/Flax, PyTorch, Keras training; LLM fine-tune with checkpoints")
def test_language_model(tmp_path: Path) -> None:
    lines = run("llm_finetune.py", tmp_path)
    first, then = (
        value(next(line for line in lines if line.startswith(word)), word) for word in ("first: ", "then: ")
    )
    assert (first["begun_at"], then["begun_at"]) == (0, 20)
    assert then["losses"][40] < first["losses"][10]


@pytest.mark.promise("command: Sweep, batch inference")
def test_sweep(tmp_path: Path) -> None:
    swept = value(run("sweep.py", tmp_path)[-1])
    assert swept["failed"] == [4]
    assert swept["best"]["loss"] < 0.05


@pytest.mark.promise("command: Sweep, batch inference")
def test_batch_inference(tmp_path: Path) -> None:
    classes = value(run("batch_inference.py", tmp_path)[-1])
    assert len(classes) == 12
    assert (classes["0-0.txt"], classes["0-1.txt"]) == (0, 1)


@pytest.mark.promise("command: JAX/Flax, PyTorch, Keras training; LLM fine-tune with checkpoints")
def test_pytorch(tmp_path: Path) -> None:
    trained, files = run("pytorch_training.py", tmp_path)[-2:]
    assert value(trained)["accuracy"] > 0.9
    assert value(files) == ["model.pt"]


@pytest.mark.promise("command: Examples (scripts, a notebook) run CPU-sized in CI")
def test_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read("first_steps.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    shown = [str(cell.get("outputs")) for cell in notebook.cells]
    assert "0.1199" in shown[3]
    assert "Remote traceback" in shown[10]
    assert "function" in shown[12]
    assert "1.5" in shown[15]


@pytest.mark.promise("command: Every code block executed or type-checked: Python")
def test_blocks_with_jax_on_the_pages(tmp_path: Path) -> None:
    assert misfits(WITH_JAX, tmp_path) == []
