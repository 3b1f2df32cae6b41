"""Task groups, and a scratch directory that is set up before the work and torn down after it, come what may.

`make_scratch` and `drop_scratch` belong together: Airflow runs the teardown when the work between them has
ended, failed or succeeded, and clearing a task in between runs the setup again first. All three are jobs, as
the scratch space lies where jobs can reach it.
"""

from __future__ import annotations

from airflow.sdk import dag, task, task_group


@dag(schedule=None, catchup=False, tags=["kinetic"])
def staged_pipeline():
    """Count the words of two texts, each in a group of its own, and compare."""

    @task.kinetic(accelerator="cpu")
    def make_scratch() -> str:
        """In real life a prefix of a bucket; here a directory of the machine where the jobs run."""
        import tempfile

        return tempfile.mkdtemp(prefix="staged-pipeline-")

    @task.kinetic(accelerator="cpu")
    def drop_scratch(scratch: str) -> None:
        import shutil

        shutil.rmtree(scratch)

    @task.kinetic(accelerator="cpu")
    def tokenise(scratch: str, name: str, text: str) -> str:
        from pathlib import Path

        path = Path(scratch, f"{name}.tokens")
        path.write_text("\n".join(text.lower().split()))
        return str(path)

    @task.kinetic(accelerator="gpu-l4")
    def train(tokens: str) -> dict[str, int]:
        from collections import Counter
        from pathlib import Path

        return dict(Counter(Path(tokens).read_text().split()))

    @task_group
    def learn(scratch: str, name: str, text: str):
        """One box in the UI; two of them run side by side."""
        return train(tokenise(scratch, name, text))

    @task
    def compare(first: dict[str, int], second: dict[str, int]) -> list[str]:
        """The words that both have."""
        return sorted(first.keys() & second.keys())

    texts = {
        "proverbs": "All that glitters is not gold and all is well that ends well",
        "recipes": "Beat well until gold and glossy and that is all",
    }
    scratch = make_scratch()
    with drop_scratch(scratch).as_teardown(setups=scratch):
        models = [learn.override(group_id=name)(scratch, name, text) for name, text in texts.items()]
    compare(*models)


staged_pipeline()
