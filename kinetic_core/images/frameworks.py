"""Which build of a framework an accelerator needs, and what is installed where a project names none.

Facts: https://docs.jax.dev/en/latest/installation.html (extras `tpu`, `cuda12`),
https://www.tensorflow.org/install/pip (`and-cuda`; `tensorflow-cpu` is the same without CUDA),
https://docs.astral.sh/uv/guides/integration/pytorch/ (`--torch-backend`).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from importlib.metadata import version

from packaging.requirements import Requirement

from kinetic_core.images.requirements import IMPORTED, KEEP, Dependencies, Wanted, lines

_JAX = {"cpu": "", "tpu": "tpu", "gpu": "cuda12"}
_TENSORFLOW = {
    "cpu": ("tensorflow-cpu", ""),
    "tpu": ("tensorflow-cpu", ""),
    "gpu": ("tensorflow", "and-cuda"),
}
_TORCH = frozenset({"torch", "torchvision", "torchaudio", "torch-xla"})
_FRAMEWORKS = frozenset({"jax", "jaxlib", "keras", "tensorflow", "tensorflow-cpu", "tensorflow-tpu", *_TORCH})
_DRIVERS = frozenset({"libtpu", "libtpu-nightly"})
"""Come with `jax[tpu]`, in the one version that fits."""
_OURS = ("cloudpickle", "google-cloud-storage")
"""What runs a function needs: cloudpickle as the client has it, and Cloud Storage for outputs."""
_WITH_JAX = frozenset({"flax", "optax", "orbax-checkpoint", "equinox", "maxtext", "google-tunix", "vllm-tpu"})
"""Bring their own jax along: none is added, but the accelerator's build of it is asked for."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What goes into an image, as lines of requirements files.

    `runtime` is the framework's layer, shared by all projects with the same framework lines; `lines` is
    everything, resolved together; `ours` is what running a function needs. `torch_backend` is uv's option,
    "" for the index's own build. `any_index` takes a version from whichever index has it, not from the first
    that knows the name: right for locked versions, whose hashes are checked.
    """

    runtime: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    torch_backend: str = ""
    any_index: bool = False
    keras_backend: str = "jax"
    notices: tuple[str, ...] = ()

    @property
    def uv_options(self) -> tuple[str, ...]:
        """What `uv pip` is called with."""
        torch = (f"--torch-backend={self.torch_backend}",) if self.torch_backend else ()
        return (*torch, "--index-strategy=unsafe-best-match") if self.any_index else torch


def choose(dependencies: Dependencies, kind: str, *, has_framework: bool = False) -> Installation:
    """The installation for an accelerator's kind: `cpu`, `gpu` or `tpu`.

    A project that names no framework gets jax and keras, except where it says what it needs and asks for no
    accelerator. Keras gets jax unless another framework is named. With `has_framework` nothing is added: the
    image that this is installed in has one.
    """
    notices = list(dependencies.notices)
    dropped = [one for one in dependencies.wanted if one.name in _DRIVERS and not one.keep]
    needless = _cuda_of_lock(dependencies) if kind != "gpu" else set()
    wanted = [
        _fitting(one, kind) for one in dependencies.wanted if one not in dropped and one.name not in needless
    ]
    if dropped:
        told = ", ".join(f"{one.where}: {one.requirement}" for one in dropped)
        notices.append(f"left out, because jax brings the one that fits: {told}. '# {KEEP}' keeps it")
    if has_framework:
        wanted = [one for one in wanted if not one.where.startswith(IMPORTED) or one.name not in _FRAMEWORKS]
    else:
        named = {one.name for one in wanted}
        wanted += [_fitting(one, kind) for one in _defaults(named, dependencies, kind)]
    frameworks = [one for one in wanted if one.name in _FRAMEWORKS]
    names = {one.name for one in wanted}
    return Installation(
        runtime=(*dependencies.options, *lines(frameworks)) if frameworks else (),
        lines=(*dependencies.options, *lines(wanted)),
        constraints=lines(dependencies.constraints),
        ours=tuple(_our_line(name) for name in _OURS if name not in names),
        torch_backend="cpu" if kind != "gpu" and _TORCH & names else "",
        any_index=dependencies.is_exact and bool(dependencies.options),
        keras_backend=_keras_backend(names),
        notices=tuple(notices),
    )


def _cuda_of_lock(dependencies: Dependencies) -> set[str]:
    """What a lock has for torch with CUDA, gigabytes of it; ranges do not name these."""
    names = {one.name for one in dependencies.wanted}
    if not dependencies.is_exact or not names & _TORCH:
        return set()
    return {name for name in names if name == "triton" or (name.startswith("nvidia-") and "-cu1" in name)}


def _our_line(name: str) -> str:
    return f"cloudpickle=={version(name)}" if name == "cloudpickle" else name


def _defaults(names: set[str], dependencies: Dependencies, kind: str) -> list[Wanted]:
    """What to add to a project that wants `names`."""
    where = "the default of image 'bundled'"
    if names & _WITH_JAX and "jax" not in names:
        return [Wanted(Requirement("jax"), where)] if kind != "cpu" else []
    if not names & _FRAMEWORKS and (kind != "cpu" or not dependencies.source):
        return [Wanted(Requirement(name), where) for name in ("jax", "keras")]
    if "keras" in names and not names & (_FRAMEWORKS - {"keras"}):
        return [Wanted(Requirement("jax"), where)]
    return []


def _keras_backend(names: set[str]) -> str:
    if "jax" in names or names & _WITH_JAX:
        return "jax"
    if names & _TORCH:
        return "torch"
    return "tensorflow" if any(name.startswith("tensorflow") for name in names) else "jax"


def _fitting(one: Wanted, kind: str) -> Wanted:
    """The accelerator's build of a framework, in the versions that were asked for."""
    if one.keep or one.requirement.url is not None:
        return one
    if one.name == "jax":
        return _as(one, "jax", _JAX[kind])
    if one.name == "tensorflow":
        return _as(one, *_TENSORFLOW[kind])
    if one.name in _TORCH and kind != "gpu":
        return replace(one, hashes=())  # of the index's build, which has CUDA inside
    return one


def _as(one: Wanted, name: str, extra: str) -> Wanted:
    requirement = copy(one.requirement)
    requirement.name = name
    requirement.extras = {extra} if extra else set()
    same = name == one.requirement.name
    return replace(one, requirement=requirement, hashes=one.hashes if same else ())
