"""Google's credentials of a client, and what is asked of Google's APIs with them.

Where a cluster is reached by a kubeconfig, and its store is an emulator, none are needed.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from kinetic_core.connections import Connections
from kinetic_core.errors import CloudError, CloudUnreachable, ConfigurationError
from kinetic_core.imports import importing
from kinetic_core.retry import patiently
from kinetic_core.settings import Account, Settings

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SECONDS = 20.0


def ask_google(
    connections: Connections, method: str, url: str, body: Any = None, account: Account | None = None
) -> tuple[int, Any]:
    """Return status and JSON of a Google API's answer, asked as `account` or as this process.

    Raises ConfigurationError for credentials that are missing or refused, OSError where there is no answer.
    """
    answer = credentials(connections, account).send(method, url, body)
    try:
        return answer.status_code, answer.json()
    except ValueError:
        return answer.status_code, {"error": {"message": f"HTTP {answer.status_code}"}}


def message_of(answer: Any) -> str:
    """What a Google API says is wrong."""
    try:
        return str(answer["error"]["message"])
    except (KeyError, TypeError):
        return str(answer)


class Credentials:
    """Google's application default credentials, or an account's; refreshed before they expire, by one thread
    at a time.

    Methods raise ConfigurationError for credentials that are refused, CloudUnreachable if there is no answer.
    """

    def __init__(self, account: Account | None = None) -> None:
        self._credentials = _default() if account is None else _scoped(account.held)
        self._remedy = (
            "Run `gcloud auth application-default login` again"
            if account is None
            else f"Look at {account.name}"
        )
        self._lock = threading.Lock()

    def token(self) -> str:
        """A token that is valid for some minutes."""
        with self._lock:
            if not self._credentials.valid:
                self._refresh()
            return str(self._credentials.token)

    def headers(self) -> dict[str, str]:
        """Return the headers that say who asks, and which project pays."""
        self.token()
        headers: dict[str, str] = {}
        self._credentials.apply(headers)
        return {name: value for name, value in headers.items() if value}

    def refresh(self) -> None:
        """Another token, whether or not the one here looks valid."""
        with self._lock:
            self._refresh()

    def send(self, method: str, url: str, body: Any = None) -> Any:
        """The answer of a Google API, of any status; OSError where there is none."""
        with importing:
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.requests import AuthorizedSession

        try:
            with AuthorizedSession(self._credentials) as session:
                return session.request(method, url, json=body, timeout=_SECONDS)
        except GoogleAuthError as exc:
            raise ConfigurationError(f"{url} cannot be asked: {exc}. {self._remedy}") from exc

    def _refresh(self) -> None:
        with importing:
            from google.auth.exceptions import GoogleAuthError, TransportError
            from google.auth.transport.requests import Request

        try:
            self._credentials.refresh(Request())
        except GoogleAuthError as exc:
            if exc.retryable or isinstance(exc, TransportError):  # such as a metadata server that is busy
                raise CloudUnreachable(f"Google gives no token: {exc}") from exc
            raise ConfigurationError(f"Google gives no token: {exc}. {self._remedy}") from exc


def _default() -> Any:
    with importing:
        import google.auth
        import google.auth.transport.requests  # which `default` imports by itself, too
        from google.auth.exceptions import DefaultCredentialsError

    try:
        return google.auth.default([_SCOPE])[0]
    except DefaultCredentialsError as exc:
        raise ConfigurationError(
            "no Google credentials here. Run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS"
        ) from exc


def _scoped(held: Any) -> Any:
    with importing:
        from google.auth.credentials import with_scopes_if_required

    return with_scopes_if_required(held, [_SCOPE])


def credentials(connections: Connections, account: Account | None) -> Credentials:
    """Return the credentials of an account, or of this process."""
    return connections.get((Credentials, account), lambda: Credentials(account))


PATIENCE = 60.0
"""Seconds for which one request is tried again after 408, 429, 5xx and dropped connections."""
_AGAIN = (408, 429, 500, 502, 503, 504)
_VERSIONS = {"compute": "compute/v1", "storage": "storage/v1"}
"""Where the first version's paths begin, if that is not `v1`."""

Json = dict[str, Any]
Ask = Callable[..., tuple[int, Any]]
Result = TypeVar("Result")


class GoogleService:
    """One service of Google's, such as `container`, and how patient to be with it."""

    def __init__(
        self,
        service: str,
        connections: Connections,
        ask: Ask | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = connections.settings
        self._base = _base(service, settings)
        self._ask = ask or functools.partial(ask_google, connections, account=settings.google_account)
        self._service, self.sleep, self.clock = service, sleep, clock

    def send(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer to one request.

        Raises CloudError for a refusal, CloudUnreachable where another request may help.
        """
        name = f"{self._service}.googleapis.com"
        try:
            status, answer = self._ask(method, f"{self._base}/{path}", body)
        except OSError as exc:
            raise CloudUnreachable(f"{name} gave no answer: {exc}") from exc
        if status < 300:
            return dict(answer)
        kind = CloudUnreachable if status in _AGAIN else CloudError
        raise kind(f"{name}: HTTP {status}: {message_of(answer)}", status, _reason(answer))

    def get(self, path: str, **query: str) -> Json | None:
        """The resource, None if there is none. Raises CloudError."""
        address = f"{path}?{urlencode(query)}" if query else path
        try:
            return self.patiently(lambda: self.send("GET", address))
        except CloudError as exc:
            if exc.status == 404:
                return None
            raise

    def patiently(self, action: Callable[[], Result]) -> Result:
        """The action's result, tried again as long as that may help."""
        return patiently(action, PATIENCE, sleep=self.sleep, clock=self.clock)


def _base(service: str, settings: Settings) -> str:
    if service == "storage" and settings.storage_emulator_host:
        return f"{settings.storage_emulator_host.rstrip('/')}/storage/v1"
    replaced = settings.api_endpoint_overrides.get(service)
    if replaced and service in _VERSIONS:  # gcloud's values for these include the version
        return replaced.rstrip("/")
    root = replaced or f"https://{service}.googleapis.com"
    return f"{root.rstrip('/')}/{_VERSIONS.get(service, 'v1')}"


def _reason(answer: Any) -> str:
    """google.rpc.ErrorInfo's reason, else the status in words."""
    try:
        error = answer["error"]
        details = [each["reason"] for each in error.get("details", ()) if "reason" in each]
        return str(details[0] if details else error.get("status", ""))
    except (KeyError, TypeError, AttributeError):
        return ""
