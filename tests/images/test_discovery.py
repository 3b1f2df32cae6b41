"""Which file counts, and which build of a framework each accelerator gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.errors import InvalidDependencies, InvalidRequest
from kinetic_core.images.discovery import check_requirements, find_dependencies
from kinetic_core.images.frameworks import Installation, choose
from kinetic_core.images.lock_files import environment
from kinetic_core.images.requirements import Dependencies, lines, parse_requirements


def found(root: Path, requirements: Any = None, script: Path | None = None) -> Dependencies:
    return find_dependencies(requirements, root=root, script=script, target=environment())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname="x"\ndependencies=["numpy"]\noptional-dependencies={a=["attrs"]}\n'
    )
    return tmp_path


def test_upwards_from_the_script(project: Path) -> None:
    script = project / "src/train.py"
    assert lines(found(project, script=script).wanted) == ("numpy",)
    (project / "requirements.txt").write_text("six\n")
    both = found(project, script=script)
    assert lines(both.wanted) == ("six",)
    assert "pyproject.toml beside it does not count" in both.notices[0]
    script.write_text('# /// script\n# dependencies = ["tqdm"]\n# ///\n')
    assert lines(found(project, script=script).wanted) == ("tqdm",)


def test_a_project_file_that_says_nothing_is_passed(project: Path) -> None:
    (project / "src/pyproject.toml").write_text("[tool.black]\n")
    assert lines(found(project, script=project / "src/train.py").wanted) == ("numpy",)


def test_a_file_above_that_may_be_of_something_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("six\n")
    (tmp_path / "inner").mkdir()
    assert "in no repository" in found(tmp_path / "inner").notices[0]
    assert found(tmp_path).notices == ()


def test_never_beyond_the_repository(project: Path) -> None:
    inner = project / "inner"
    (inner / ".git").mkdir(parents=True)
    assert found(inner).source == ""


@pytest.mark.promise("data: Explicit `requirements=[…]` or a path")
def test_asked_for(project: Path) -> None:
    assert lines(found(project, ["six", "attrs"]).wanted) == ("attrs", "six")
    assert found(project, []).source == "requirements"
    assert lines(found(project, "pyproject.toml[a]").wanted) == ("attrs", "numpy")
    with pytest.raises(InvalidDependencies, match="there is no file"):
        found(project, "nothing.txt")
    with pytest.raises(InvalidDependencies, match=r"requirements:2: '\.' is a path"):
        found(project, ["six", "-e ."])


def test_the_option_is_checked_where_it_is_written() -> None:
    assert check_requirements(["six"]) == ("six",)
    with pytest.raises(InvalidRequest, match=r"put requirements into a list: \['six==1'\]"):
        check_requirements("six==1")
    with pytest.raises(TypeError, match="requirements=3"):
        check_requirements(3)  # type: ignore[arg-type]


def chosen(kind: str, *texts: str, source: str = "requirements") -> Installation:
    asked = parse_requirements(texts, source, Path())
    return choose(asked if source else Dependencies(), kind)


def test_nothing_named_is_jax_and_keras() -> None:
    assert chosen("tpu", source="").lines == ("jax[tpu]", "keras")
    assert chosen("gpu", "numpy").lines == ("jax[cuda12]", "keras", "numpy")
    assert chosen("gpu", "numpy").runtime == ("jax[cuda12]", "keras")
    assert chosen("cpu", "numpy").lines == ("numpy",)
    assert chosen("cpu", source="").lines == ("jax", "keras")
    assert choose(Dependencies(), "tpu", has_framework=True).lines == ()


@pytest.mark.promise("data: Accelerator runtimes from what the project asks for")
@pytest.mark.parametrize(
    ("kind", "asked", "lines"),
    [
        ("tpu", "jax==0.8.0", ("jax[tpu]==0.8.0",)),
        ("gpu", "jax[cpu]>=0.7", ("jax[cuda12]>=0.7",)),
        ("cpu", "jax[tpu]", ("jax",)),
        ("tpu", "jax==0.8.0  # kn:keep", ("jax==0.8.0",)),
        ("tpu", "keras>=3", ("jax[tpu]", "keras>=3")),
        ("gpu", "torch", ("torch",)),
        ("gpu", "tensorflow>=2.16", ("tensorflow[and-cuda]>=2.16",)),
        ("tpu", "tensorflow==2.19", ("tensorflow-cpu==2.19",)),
        ("gpu", "optax", ("jax[cuda12]", "optax")),
    ],
)
def test_the_accelerators_build_in_the_asked_version(kind: str, asked: str, lines: tuple[str, ...]) -> None:
    assert chosen(kind, asked).lines == lines


def test_drivers_come_with_jax() -> None:
    installation = chosen("tpu", "jax", "libtpu==1", "jaxlib==0.8")
    assert installation.lines == ("jax[tpu]", "jaxlib==0.8")
    assert "requirements:2: libtpu==1" in installation.notices[0]


@pytest.mark.promise("data: Accelerator runtimes from what the project asks for")
def test_torch_without_cuda_where_there_is_none() -> None:
    lock = replace(
        parse_requirements(["torch", "nvidia-nccl-cu12", "triton"], "uv.lock", Path()), is_exact=True
    )
    assert choose(lock, "tpu").lines == ("torch",)
    assert choose(lock, "gpu").lines == ("nvidia-nccl-cu12", "torch", "triton")
    assert chosen("cpu", "torch==2.9 --hash=sha256:aa").lines == ("torch==2.9",)
    assert (chosen("cpu", "torch").torch_backend, chosen("gpu", "torch").torch_backend) == ("cpu", "")


def test_each_version_of_a_lock_comes_from_its_own_index(tmp_path: Path) -> None:
    pytest.importorskip("packaging.pylock")
    (tmp_path / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "uv"\n[[packages]]\nname = "six"\nversion = "1.17.0"\n'
        'index = "https://other/simple"\n'
        'sdist = { name = "six-1.17.0.tar.gz", url = "https://x/s.tar.gz", hashes = { sha256 = "aa" } }\n'
    )
    installation = choose(found(tmp_path, "pylock.toml"), "cpu")
    assert installation.lines[0] == "--extra-index-url https://other/simple"
    assert installation.uv_options == ("--index-strategy=unsafe-best-match",)
    assert chosen("cpu", "--extra-index-url https://other/simple", "six").uv_options == ()


def test_keras_uses_the_framework_that_is_there() -> None:
    backends = [
        chosen("cpu", *texts).keras_backend for texts in (["keras"], ["keras", "torch"], ["tensorflow"])
    ]
    assert backends == ["jax", "torch", "tensorflow"]


@pytest.mark.promise("data: Tag = digest of normalised inputs and base")
def test_spelling_and_order_make_no_difference() -> None:
    one, other = chosen("cpu", "Six", "numpy>=2,<3"), chosen("cpu", "numpy <3, >=2  # why", "Six")
    assert one == other
