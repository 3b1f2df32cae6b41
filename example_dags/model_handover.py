"""A model goes from the task that trains it to those that use it, without passing through Airflow.

What a job returns becomes its task's XCom if XCom can carry it. A model cannot: it stays in the job's object
store and a reference is pushed, a few hundred bytes. Any kinetic task that is given the reference, on its own
or deep inside a list or a dict, receives the model.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import dag, task


class Model:
    """Counts letters to tell languages apart: a class of this file, which Airflow never has to know."""

    def __init__(self, language: str, text: str) -> None:
        self.language = language
        self.frequencies = {letter: text.count(letter) / len(text) for letter in set(text)}

    def score(self, text: str) -> float:
        """How much a text looks like this language."""
        return sum(self.frequencies.get(letter, 0.0) for letter in text) / len(text)


@dag(schedule=None, catchup=False, tags=["kinetic"])
def model_handover():
    """Train two models, let them judge a sentence together."""

    @task.kinetic(accelerator="gpu-l4")
    def train(language: str, text: str) -> Model:
        """Its return value is the reference that `judge` and `describe` see."""
        return Model(language, text)

    @task.kinetic(accelerator="cpu")
    def judge(models: dict[str, Model], sentence: str) -> str:
        """Gets the models, not the references."""
        return max(models.values(), key=lambda model: model.score(sentence)).language

    @task
    def describe(reference: dict[str, Any]) -> str:
        """An ordinary task sees the reference, and unpickles nothing."""
        return f"a {reference['type_name']} in {reference['store_uri']}"

    english = train.override(task_id="english")("English", "the quick brown fox jumps over the lazy dog")
    finnish = train.override(task_id="finnish")("Finnish", "yksi kaksi kolme neljä viisi kuusi seitsemän")
    judge({"a": english, "b": finnish}, "kahdeksan yhdeksän kymmenen")
    describe(english)


model_handover()
