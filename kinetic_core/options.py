"""The options of `run`: one table, which everything about an option comes from.

A row is a field of `Keywords`: its name, its type, and an `Option` with its documentation, its check and its
default. The signature and the help of `run`, the operator and the decorators of the Airflow provider, their
template fields, the flags of the command and docs/reference/options.md are made of the rows.

To add an option, add a row, a field of `RunOptions` or `PodOptions` for its checked value, the code that acts
on that value, and a test.
"""

# No `from __future__ import annotations`: the annotations of this module are the table, and are evaluated.

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import ulp
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Never,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_origin,
)

from kinetic_core import option_checks as checks
from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.job import PodOptions

if TYPE_CHECKING:
    from kinetic_core.data.data import Data
    from kinetic_core.settings import Settings

Later = TypeVar("Later")
"""What stands for a value that is not known yet: for a task, a template or the output of another task. The
options of `run` have none.
"""
Function = TypeVar("Function", bound=Callable[..., object])


def truth_of_text(words: str) -> bool:
    """Return what `true` or `false` means, in any case. Raises KeyError."""
    return {"true": True, "false": False}[words.lower()]


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table: what there is to know of an option besides its name and type.

    `doc` is for people. `check` takes the option's name and what was given, and returns the value for jobs;
    `rule`, if there is one, looks at all options when each has been checked. Both raise InvalidRequest or
    TypeError. An option with the `default` None is not checked when it is None. `read` makes a value of a
    text, where the option takes no text itself. `positional` options may be given by position, in the order
    of the rows. An option with a `variable` falls back to `KINETIC_` and its name; `flag` is the help of
    one that every verb of the command takes.
    """

    doc: str
    check: Callable[[str, Any], object]
    default: object = None
    read: Callable[[str], object] | None = None
    rule: Callable[["RunOptions"], None] | None = None
    positional: bool = False
    variable: bool = False
    flag: str = ""

    def help(self, name: str) -> str:
        """Return what people read of the option `name`."""
        return f"{self.doc} Falls back to `KINETIC_{name.upper()}`." if self.variable else self.doc


_retries = checks.whole_number(0, 100)


class Keywords(TypedDict, Generic[Later], total=False):
    """The options that `run` and tasks of Airflow take under the same names."""

    # fmt: off
    accelerator: Annotated[str | Accelerator | Sequence[str | Accelerator | Later] | Later, Option(
        "Hardware and size: `tpu-v6e-8`, `gpu-l4`, `gpu-a100-80gb-4`, `cpu`, `cpu:8`; `:spot` at the end is "
        "`spot=True`. The accelerators of a list are tried in their order, until one has capacity.",
        checks.accelerators, default="tpu-v5e-1", rule=checks.different_choices, positional=True)]
    container_image: Annotated[str | Later | None, Option(
        "Image to run in. None or `bundled` builds one with the project's dependencies; `prebuilt` takes a "
        "base image and installs them when the job starts.",
        checks.text, positional=True, variable=True)]
    base_image_repo: Annotated[str | Later | None, Option(
        'Repository of base images for `container_image="prebuilt"`, filled by `kinetic_core.build_image`. '
        "None is the cluster's own.",
        checks.text, positional=True, variable=True)]
    zone: Annotated[str | Later | None, Option(
        "Zone of the cluster.",
        checks.text, positional=True, variable=True, flag="zone of the cluster")]
    project: Annotated[str | Later | None, Option(
        "Google Cloud project.",
        checks.text, positional=True, variable=True, flag="Google Cloud project")]
    capture_env_vars: Annotated[Sequence[str | Later] | Later | None, Option(
        "Names of environment variables that the job should see, or prefixes that end in `*`.",
        checks.environment_patterns, positional=True)]
    cluster: Annotated[str | Later | None, Option(
        "Name of the cluster.",
        checks.text, positional=True, variable=True, flag="name of the cluster")]
    backend: Annotated[str | Later | None, Option(
        "`local`, `gke` or `pathways` (LeaderWorkerSets). None is what suits the cluster and the slice.",
        checks.backend, positional=True, variable=True, flag="local, gke or pathways")]
    namespace: Annotated[str | Later | None, Option(
        "Namespace of the jobs.",
        checks.namespace, positional=True, variable=True, flag="namespace of the jobs")]
    volumes: Annotated[Mapping[str, "Data"] | Later | None, Option(
        "Absolute mount path to the `Data` that is there when the function starts.",
        checks.volumes, positional=True)]
    spot: Annotated[bool | Later, Option(
        "Use spot capacity.",
        checks.truth, default=False, read=truth_of_text, positional=True)]
    output_dir: Annotated[str | Later | None, Option(
        "What the job finds as `KINETIC_OUTPUT_DIR`. None is a place of its own per job.",
        checks.text, positional=True, variable=True)]
    requirements: Annotated[str | Path | Sequence[str | Later] | Later | None, Option(
        "What the job needs installed, instead of what the project's files say: a path (`requirements.txt`, "
        "`pyproject.toml[extra]`, `uv.lock:group`) or a list of requirements.",
        checks.requirements)]
    memory: Annotated[str | int | Later | None, Option(
        'Limit per host, such as `"16Gi"`, or in bytes. None is no limit.',
        checks.memory)]
    timeout: Annotated[float | Later | None, Option(
        "Seconds from submission after which the job is ended, with waiting and debugging. None is no limit.",
        checks.number("seconds", 1, "at least 1 second; None means no limit"), read=float)]
    capacity_timeout: Annotated[float | Later | None, Option(
        "Seconds to wait for each of several accelerators before the next is tried; None is 600. The last "
        "is waited for as long as `timeout` allows.",
        checks.number("seconds", 1, "at least 1 second; None means 600 seconds"), read=float)]
    budget: Annotated[float | Later | None, Option(
        "What the job may cost, over all attempts, at the prices of `KINETIC_PRICES` and in their currency; "
        "then it is ended. Waiting costs nothing. Of a map, what each input may cost.",
        checks.number("units of your price table's currency", ulp(0), "more than 0; None means no limit"),
        read=float)]
    infrastructure_retries: Annotated[int | Later | None, Option(
        "Extra attempts after what was not the function's fault: preemption, a lost node, the store. None "
        "is 10, or 0 for a job that is debugged.",
        _retries, read=int)]
    cpu: Annotated[float | Later | None, Option(
        "Cores to ask for. None is what the accelerator's machine has.",
        checks.number("cores", 0.1, "at least 0.1 cores"), read=float, rule=checks.cores_said_once)]
    disk: Annotated[str | int | Later | None, Option(
        'Ephemeral storage to ask for, such as `"100Gi"`, or in bytes; a job that uses more is evicted. '
        "None is what project and data need.",
        checks.amount)]
    reservation: Annotated[str | Later | None, Option("Reservation whose nodes to use.", checks.object_name)]
    flex_start: Annotated[bool | Later, Option(
        "Only use nodes that GKE makes by flex-start, for TPUs and GPUs.",
        checks.truth, default=False, read=truth_of_text, rule=checks.can_flex_start)]
    priority_class: Annotated[str | Later | None, Option("Kubernetes PriorityClass.", checks.object_name)]
    service_account: Annotated[str | Later | None, Option("Kubernetes ServiceAccount.", checks.object_name)]
    node_selector: Annotated[Mapping[str, str | Later] | Later | None, Option(
        "Labels that the node must have.",
        checks.node_labels)]
    tolerations: Annotated[Sequence[Mapping[str, object]] | Later | None, Option(
        "Kubernetes tolerations, as its API has them.",
        checks.tolerations)]
    labels: Annotated[Mapping[str, str | Later] | Later | None, Option(
        "Labels of the Job and its pods.",
        checks.own_labels)]
    secrets: Annotated[Mapping[str, str | Later] | Later | None, Option(
        'Name of a variable to `"secret/key"` of the namespace, or to `"projects/P/secrets/S"` of Secret '
        "Manager, which the pod reads; the value never leaves the cluster. Refused by backend `local`.",
        checks.secrets)]
    run_as_root: Annotated[bool | Later, Option(
        "Run as root, for images that need it. Otherwise the pod runs as user 1000.",
        checks.truth, default=False, read=truth_of_text)]
    cache_volume: Annotated[str | Later | None, Option(
        "PersistentVolumeClaim of the namespace that keeps downloaded data for other jobs, which verify it.",
        checks.object_name)]
    lease: Annotated[float | Later | None, Option(
        "Seconds after which an attempt that cannot reach the store ends itself, so that another can take "
        "the place of one whose node has fallen silent; at least 15. None waits for the node.",
        checks.number("seconds", 15, "at least 15 seconds: a store that is slow for less must not end it"),
        read=float, rule=checks.one_host_with_lease)]
    hang_after: Annotated[float | Later | None, Option(
        "Seconds without a line of output and with an idle processor, on all hosts, after which the attempt "
        "fails with the stacks of all; at least 5. None waits.",
        checks.number("seconds", 5, "at least 5 seconds, and longer than the function ever waits in silence"),
        read=float)]
    security_context: Annotated[Mapping[str, object] | Later | None, Option(
        "Fields of the container's securityContext, in place of Kinetic's or beside them.",
        checks.security_context)]
    warm: Annotated[str | float | Later | None, Option(
        'How long a pod waits for further calls, such as `"10m"`, or in seconds. A call that finds a waiting '
        "pod of its kind runs there, in its own process, see docs/guides/warm.md. None is a pod for each.",
        checks.duration, rule=checks.can_be_warm)]
    reuse: Annotated[str | Later | None, Option(
        'With `warm=`, what calls on one pod share: `"process"`, one process with its imports and the state '
        'of its device; `"fork"`, what earlier calls imported of the image, in a new process for each. None '
        "is a new process that has imported nothing, see docs/guides/warm.md.",
        checks.one_of("process", "fork"), rule=checks.reuse_of_warm)]
    # fmt: on


class RunKeywords(Keywords[Never], total=False):
    """The options of `run`. Tasks of Airflow take these under other names, or not at all."""

    # fmt: off
    debug: Annotated[bool, Option(
        "Let the function wait for a debugger (debugpy) before its first line; a call then also offers it "
        "at a port of this machine, see docs/guides/debugging.md. For one call, not for maps.",
        checks.truth, default=False, rule=checks.one_to_debug, positional=True)]
    retries: Annotated[int, Option(
        "Extra attempts after the function failed.",
        _retries, default=0, read=int)]
    queue: Annotated[str | None, Option("Kueue LocalQueue.", checks.object_name)]
    # fmt: on


_max_concurrent = Option("Jobs alive at once. None is no limit.", checks.limit, default=64, read=int)
_fail_fast = Option(
    "Start nothing more after the first failure.", checks.truth, default=False, read=truth_of_text
)
_cancel_running_on_fail = Option(
    "With `fail_fast`, also end what runs; without it, nothing.",
    checks.truth,
    default=False,
    read=truth_of_text,
)


class MapKeywords(TypedDict, total=False):
    """The options of `run_async_map`: what is asked of a batch besides what is asked of each of its jobs."""

    # fmt: off
    input_mode: Annotated[str, Option(
        "How an input becomes arguments. `auto`: a dict whose keys could be names of parameters is keyword "
        "arguments, a list or tuple is positional ones, anything else is the one argument. `single`, `args` "
        "and `kwargs` say it outright.",
        checks.one_of("auto", "single", "args", "kwargs"), default="auto")]
    max_concurrent: Annotated[int | None, _max_concurrent]
    retries: Annotated[int, Option(
        "Extra attempts per input after the function failed. 0 is what `run` says.", _retries, default=0)]
    fail_fast: Annotated[bool, _fail_fast]
    cancel_running_on_fail: Annotated[bool, _cancel_running_on_fail]
    name: Annotated[str | None, Option("Kept with the batch, for people.", checks.title)]
    tags: Annotated[Mapping[str, str] | None, Option("Kept with the batch.", checks.tags)]
    project: Annotated[str | None, Option("Google Cloud project. None is what `run` says.", checks.text)]
    cluster: Annotated[str | None, Option("Name of the cluster. None is what `run` says.", checks.text)]
    group_id: Annotated[str | None, Option(
        "Id of the batch: `grp-` and lower-case letters, digits and `-`. The same call under the same id, "
        "from any process, is the same batch. None draws one.",
        checks.batch_id)]
    warm: Annotated[str | float | None, Option(
        'Run the inputs on `max_concurrent` pods that stay for so long, such as `"10m"`, see '
        "docs/guides/warm.md. None is what `run` says.",
        checks.duration)]
    skip_done: Annotated[bool, Option(
        "With `group_id`, and once all of that batch has ended, run its inputs that have no value again.",
        checks.truth, default=False)]
    # fmt: on


class BatchTaskKeywords(TypedDict, Generic[Later], total=False):
    """The options of a task of Airflow that runs a batch, besides those of each of its jobs."""

    # fmt: off
    over: Annotated[str | Later | None, Option(
        "Name of the parameter of which the task gets a list, and the function one element in each call. "
        "None is the function's first parameter.",
        checks.text)]
    max_concurrent: Annotated[int | Later, replace(
        _max_concurrent, doc="Inputs that run at once, at most, however many workers Airflow has.")]
    max_failures: Annotated[int | Later, Option(
        "Number of inputs that may stay without a value: with more, the task fails.",
        checks.whole_number(0, 10_000_000), default=0, read=int)]
    fail_fast: Annotated[bool | Later, replace(
        _fail_fast, doc="Start nothing more once more than `max_failures` inputs have failed.")]
    cancel_running_on_fail: Annotated[bool | Later, _cancel_running_on_fail]
    rerun: Annotated[str | Later, Option(
        "Which inputs a task runs when a person has cleared it: `missing`, those without a value, or `all`.",
        checks.one_of("missing", "all"), default="missing")]
    # fmt: on


class Table:
    """The options that a TypedDict names, of which each field is annotated with an `Option`.

    `rows` has them by name, those that may be given by position first; `signature` is that of a function that
    takes them.
    """

    def __init__(self, keywords: type[Any]) -> None:
        annotations = keywords.__annotations__
        found: dict[str, Option] = {name: kind.__metadata__[0] for name, kind in annotations.items()}
        self.rows: Mapping[str, Option] = dict(sorted(found.items(), key=lambda item: not item[1].positional))
        self.types: Mapping[str, str] = {name: type_text(annotations[name]) for name in self.rows}
        self.signature = inspect.Signature([
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD if row.positional else inspect.Parameter.KEYWORD_ONLY,
                default=row.default,
                annotation=self.types[name],
            )
            for name, row in self.rows.items()
        ])  # fmt: skip

    def check(self, caller: str, /, *positional: object, **named: object) -> dict[str, Any]:
        """Return the checked values by name, without those that were not given and have no default.

        Raises InvalidRequest, or TypeError as a call of `caller` would.
        """
        try:
            given = self.signature.bind(*positional, **named).arguments
        except TypeError as error:
            from difflib import get_close_matches

            unknown = next((name for name in named if name not in self.rows), "")
            close = "".join(f"did you mean {one}=? " for one in get_close_matches(unknown, self.rows, n=1))
            raise TypeError(
                f"{caller}() {error}; {close}docs/reference/options.md lists the options"
            ) from None
        return {
            name: row.check(name, value)
            for name, row in self.rows.items()
            if (value := given.get(name, row.default)) is not None or row.default is not None
        }

    def describes(self, function: Function) -> Function:
        """Give a function with `**options` the signature and the documentation of these options."""
        written = inspect.signature(function)
        own = [each for each in written.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        function.__signature__ = written.replace(  # type: ignore[attr-defined]
            parameters=[*own, *self.signature.parameters.values()]
        )
        listed = "\n".join(f"    {name}: {row.help(name)}" for name, row in self.rows.items())
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n{listed}\n"
        return function


def type_text(kind: object) -> str:
    """Return a type as it is written in Python, without what stands for a value that is not known yet."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_text(arguments[0])
    if not arguments:
        return (
            kind if isinstance(kind, str) else "None" if kind is type(None) else getattr(kind, "__name__", "")
        )
    known = [type_text(each) for each in arguments if each is not Later]
    name = getattr(origin, "__name__", "")
    return " | ".join(known) if name in ("Union", "UnionType") else f"{name}[{', '.join(known)}]"


OPTIONS = Table(RunKeywords)
"""The options of `run`."""
MAP_OPTIONS = Table(MapKeywords)
"""The options of `run_async_map`."""
BATCH_TASK_OPTIONS = Table(BatchTaskKeywords)
"""The options of a task that runs a batch."""
NOT_GIVEN: Final = cast("str", object())
"""Stands for an argument that was not given by position."""
_POD_FIELDS = frozenset(each.name for each in fields(PodOptions))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a call, checked. Made by `RunOptions.checked(...)`, which takes what `run` takes.

    `memory` is in bytes per host. `fallbacks` are tried in their order, each when the accelerators before it
    had no capacity for `capacity_timeout` seconds. `pod` has the options that mean something on a cluster
    only. The table says the rest.
    """

    table: ClassVar[Table] = OPTIONS
    """What the options are checked with."""

    accelerator: Accelerator
    container_image: str | None = None
    base_image_repo: str | None = None
    zone: str | None = None
    project: str | None = None
    capture_env_vars: tuple[str, ...] = ()
    cluster: str | None = None
    backend: str | None = None
    namespace: str | None = None
    volumes: Mapping[str, "Data"] = field(default_factory=dict)
    output_dir: str | None = None
    debug: bool = False
    memory: int | None = None
    timeout: float | None = None
    retries: int = 0
    infrastructure_retries: int = 10
    pod: PodOptions = field(default_factory=PodOptions)
    requirements: str | Path | Sequence[str] | None = None
    fallbacks: tuple[Accelerator, ...] = ()
    capacity_timeout: float = 600.0
    budget: float | None = None
    warm: float | None = None
    reuse: str | None = None

    @property
    def choices(self) -> tuple[Accelerator, ...]:
        """All accelerators, the first choice first."""
        return (self.accelerator, *self.fallbacks)

    def on(self, accelerator: Accelerator) -> Self:
        """Return the options with another machine that carries the accelerator's name. Raises InvalidRequest
        if it does not go with the other options.
        """
        changed = replace(self, accelerator=accelerator)
        changed.check_rules()
        return changed

    def check_rules(self) -> None:
        """Raise InvalidRequest if options exclude each other."""
        for row in self.table.rows.values():
            if row.rule is not None:
                row.rule(self)

    def settings(self, settings: "Settings") -> "Settings":
        """Return settings with the place that these options name."""
        return settings.with_arguments(
            project=self.project, zone=self.zone, cluster=self.cluster, namespace=self.namespace
        )

    @classmethod
    def checked(
        cls,
        accelerator: str | Accelerator | Sequence[str | Accelerator] = NOT_GIVEN,
        /,
        *others: object,
        **options: Unpack[RunKeywords],
    ) -> Self:
        """Check options as `run` takes them. Touches no file and no network.

        Raises InvalidRequest or one of its kinds, naming the option, and TypeError for an unknown option or a
        value of the wrong type.
        """
        positional = () if accelerator is NOT_GIVEN else (accelerator, *others)
        values = cls.table.check("run", *positional, **options)
        choices: tuple[Accelerator, ...] = values.pop("accelerator")
        if values.pop("spot"):
            choices = tuple(one if one.kind == "cpu" else replace(one, spot=True) for one in choices)
        if values["debug"]:
            values.setdefault("infrastructure_retries", 0)
        pod = PodOptions(**{name: values.pop(name) for name in _POD_FIELDS & values.keys()})
        checked = cls(choices[0], fallbacks=choices[1:], pod=pod, **values)
        checked.check_rules()
        return checked
