"""`Client`: one place with one set of credentials, and the functions that use the default client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar, Unpack

from kinetic_core.connections import Connections, default_connections
from kinetic_core.decorator import Decorator, RemoteCallable, decorator_for
from kinetic_core.errors import InvalidRequest
from kinetic_core.options import NOT_GIVEN, OPTIONS, RunKeywords, RunOptions
from kinetic_core.settings import STATED, Account, Settings, read_settings

if TYPE_CHECKING:
    import os

    from kinetic_core.accelerators.grammar import Accelerator
    from kinetic_core.batches.handle import BatchHandle
    from kinetic_core.instances import RemoteClass
    from kinetic_core.job import JobStatus
    from kinetic_core.jobs.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")

_KINDS = ("cpu", "gpu", "tpu")


class Client:
    """Client of one place where jobs run: its settings, and everything that it holds open with them.

    It owns the connections to the API server and to the store, the credentials, the watches and what was read
    with them. Nothing is opened before it is needed, and nothing is shared with another client. Threads may
    share a client; a forked child makes connections of its own.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        google_credentials: Any = None,
        kubernetes_configuration: Any = None,
        **stated: str | os.PathLike[str],
    ) -> None:
        """Make a client. Connects to nothing.

        settings: all settings, used as they are; without them, environment and profile are read now.
        google_credentials: a `google.auth.credentials.Credentials` for Google's services, in place of the
            application default ones.
        kubernetes_configuration: a `kubernetes.client.Configuration` to connect to the cluster with.
        stated: settings by name, which come before environment and profile: profile, backend, project, zone,
            cluster, namespace, kubeconfig, kube_context, bucket, local_store and the others of `Settings`.

        Raises ConfigurationError for a value that cannot be used, TypeError for an unknown setting.
        """
        if settings is not None and stated:
            raise InvalidRequest(f"Client got settings and {', '.join(stated)}: give one or the other")
        if unknown := sorted(stated.keys() - STATED):
            raise TypeError(f"Client has no setting {unknown[0]!r}; it has {', '.join(sorted(STATED))}")
        if settings is None:
            texts = {name: str(value) for name, value in stated.items()}
            settings = read_settings(stated=texts, by="Client")
        self._connections = Connections(
            _with_accounts(settings, google_credentials, kubernetes_configuration)
        )

    @classmethod
    def of(cls, connections: Connections) -> Self:
        """Return the client that has these connections."""
        client = cls.__new__(cls)
        client._connections = connections
        return client

    @property
    def connections(self) -> Connections:
        """What the client holds open."""
        return self._connections

    @property
    def settings(self) -> Settings:
        """The client's settings."""
        return self._connections.settings

    @OPTIONS.describes
    def run(
        self,
        accelerator: str | Accelerator | Sequence[str | Accelerator] = NOT_GIVEN,
        /,
        *others: object,
        **options: Unpack[RunKeywords],
    ) -> Decorator:
        """Decorate a function as `kinetic_core.run` does, to run it by this client.

        What is decorated already is bound with `client.bind(function)`.
        """
        return decorator_for(RunOptions.checked(accelerator, *others, **options), self._connections)

    def cls(
        self,
        accelerator: str | Accelerator | Sequence[str | Accelerator] = NOT_GIVEN,
        /,
        *others: object,
        recreate: bool = False,
        **options: Unpack[RunKeywords],
    ) -> Callable[[type], RemoteClass]:
        """Decorate a class, as `kinetic_core.cls` does; its instances live in pods of this client's place."""
        from kinetic_core.instances import class_decorator

        return class_decorator((accelerator, *others), options, self._connections, recreate=recreate)

    def bind(self, function: RemoteCallable[P, R]) -> RemoteCallable[P, R]:
        """Return a function that `run` has decorated, to run it by this client."""
        return function.with_connections(self._connections)

    def attach(
        self,
        job_id: str,
        project: str | None = None,
        cluster: str | None = None,
        *,
        namespace: str | None = None,
        backend: str | None = None,
    ) -> JobHandle:
        """Return the handle of a job that any process submitted.

        `project`, `cluster` and `namespace` default to the settings; `backend` too, then to this machine if
        the job ran here. Raises JobNotFound if no such job is stored, OtherCluster or OtherNamespace if the
        job belongs to another cluster or namespace.
        """
        from kinetic_core.jobs.listing import attach

        return attach(self._connections, job_id, project, cluster, namespace=namespace, backend=backend)

    def handle(self, values: Mapping[str, Any]) -> JobHandle:
        """Return the handle that `JobHandle.to_dict` wrote, in any process. Raises TypeError."""
        from kinetic_core.jobs.handle import JobHandle

        return JobHandle.of(JobHandle.from_dict(values), self._connections)

    def list_jobs(
        self,
        project: str | None = None,
        zone: str | None = None,
        cluster: str | None = None,
        namespace: str | None = None,
        *,
        state: JobStatus | Collection[JobStatus] | None = None,
        limit: int | None = None,
        backend: str | None = None,
    ) -> list[JobHandle]:
        """List the stored jobs of a namespace, newest first, finished ones and inputs of batches included.

        `state` selects jobs by their status now, one or several; `limit` takes the newest so many. The other
        arguments default to the settings; with `backend="local"` and no namespace, all namespaces are listed.
        A job whose handle cannot be read is left out with a warning. Raises InvalidRequest.
        """
        from kinetic_core.jobs.listing import list_jobs

        return list_jobs(
            self._connections, project, zone, cluster, namespace, state=state, limit=limit, backend=backend
        )

    def attach_batch(
        self,
        group_id: str,
        project: str | None = None,
        cluster: str | None = None,
        poll_interval: float = 10.0,
        poll_timeout: float | None = 1800.0,
        *,
        namespace: str | None = None,
        backend: str | None = None,
        goes_on: bool = True,
    ) -> BatchHandle:
        """Return the handle of a batch that any process started.

        Where inputs wait for a client that creates their Jobs, this process does so together with others;
        with `goes_on=False` it only looks or cancels. While the submitter is still at work, a thread looks
        every `poll_interval` seconds for new jobs; inputs without a job after `poll_timeout` seconds (None:
        never) count as unavailable.

        Raises BatchNotFound (a FileNotFoundError) if no such batch is stored, OtherCluster or OtherNamespace
        if the batch belongs to another cluster or namespace than arguments or settings name.
        """
        from kinetic_core.batches.submit import attach_batch

        return attach_batch(
            self._connections,
            group_id,
            project,
            cluster,
            poll_interval,
            poll_timeout,
            namespace=namespace,
            backend=backend,
            goes_on=goes_on,
        )

    def build_image(
        self,
        repo: str | None = None,
        categories: Sequence[str] = _KINDS,
        *,
        tag: str | None = None,
        dockerfile: str | Path | None = None,
        project: str | None = None,
        zone: str | None = None,
        cluster: str | None = None,
        progress: Callable[[str], None] = print,
    ) -> dict[str, str]:
        """Build and publish base images for `container_image="prebuilt"`; category to `address@sha256:…`.

        repo: `LOCATION-docker.pkg.dev/PROJECT/NAME`, by default the cluster's own repository; or an `ACCOUNT`
            of Docker Hub, with the secrets `dockerhub-username` and `dockerhub-token` in Secret Manager.
        categories: some of `cpu`, `gpu`, `tpu`; each is one build, all at the same time.
        tag: instead of this version; `-py3.12`, or whichever Python this is, follows it.
        dockerfile: a file to build instead of ours. It must install uv, cloudpickle and google-cloud-storage
            for this Python; `runtime.txt`, the framework's requirements, is beside it.
        project, zone, cluster: whose Cloud Build; each falls back to the settings.
        progress: told every line of the builds' logs.

        Raises InvalidRequest, ConfigurationError, or ImageError naming every category that failed.
        """
        from kinetic_core.images.base_images import build_image

        place = self._connections.with_arguments(project=project, zone=zone, cluster=cluster)
        return build_image(place, repo, categories, tag=tag, dockerfile=dockerfile, progress=progress)

    def close(self) -> None:
        """Close every connection and end every watch; jobs go on. Any further use raises InvalidRequest."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = self.settings
        where = place.kubeconfig or place.cluster
        return f"<kinetic client of {where}, namespace {place.namespace!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client stays in its process: it cannot be pickled. Make one where it is needed")


def _with_accounts(settings: Settings, google: Any, kubernetes: Any) -> Settings:
    """Return settings with the credentials that a client was given."""
    accounts = {"google_account": google, "kubernetes_account": kubernetes}
    given = {
        name: Account(f"the client's {name}", token_hex(8), held)
        for name, held in accounts.items()
        if held is not None
    }
    return replace(settings, **given) if given else settings  # type: ignore[arg-type]


def default_client() -> Client:
    """Return the client of module-level functions, with the settings as environment and profile are now.

    What it holds open is made once in a process.
    """
    return Client.of(default_connections())


def attach(
    job_id: str,
    project: str | None = None,
    cluster: str | None = None,
    *,
    namespace: str | None = None,
    backend: str | None = None,
) -> JobHandle:
    """Return the handle of a job that any process submitted, as `Client.attach` of the default client."""
    return default_client().attach(job_id, project, cluster, namespace=namespace, backend=backend)


def list_jobs(
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    *,
    state: JobStatus | Collection[JobStatus] | None = None,
    limit: int | None = None,
    backend: str | None = None,
) -> list[JobHandle]:
    """List the stored jobs of a namespace, newest first, as `Client.list_jobs` of the default client."""
    return default_client().list_jobs(
        project, zone, cluster, namespace, state=state, limit=limit, backend=backend
    )


def attach_batch(
    group_id: str,
    project: str | None = None,
    cluster: str | None = None,
    poll_interval: float = 10.0,
    poll_timeout: float | None = 1800.0,
    *,
    namespace: str | None = None,
    backend: str | None = None,
    goes_on: bool = True,
) -> BatchHandle:
    """Return the handle of a batch, as `Client.attach_batch` of the default client."""
    return default_client().attach_batch(
        group_id,
        project,
        cluster,
        poll_interval,
        poll_timeout,
        namespace=namespace,
        backend=backend,
        goes_on=goes_on,
    )


def build_image(
    repo: str | None = None,
    categories: Sequence[str] = _KINDS,
    *,
    tag: str | None = None,
    dockerfile: str | Path | None = None,
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    progress: Callable[[str], None] = print,
) -> dict[str, str]:
    """Build and publish base images, as `Client.build_image` of the default client; category to address."""
    return default_client().build_image(
        repo,
        categories,
        tag=tag,
        dockerfile=dockerfile,
        project=project,
        zone=zone,
        cluster=cluster,
        progress=progress,
    )
