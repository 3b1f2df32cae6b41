"""Google's credentials of this process, and what is asked of Google's APIs with them.

Where a cluster is reached by a kubeconfig, and its store is an emulator, none are needed.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from kinetic_core.accounts import Account
from kinetic_core.errors import ConfigurationError

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SECONDS = 20.0


def ask_google(method: str, url: str, body: Any = None, account: Account | None = None) -> tuple[int, Any]:
    """Status and JSON of a Google API's answer, asked as `account` or as this process.

    Raises ConfigurationError for credentials that are missing or refused, OSError where there is no answer.
    """
    answer = credentials(account).send(method, url, body)
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
    """

    def __init__(self, account: Account | None = None) -> None:
        self._credentials = _default() if account is None else account.held
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

    def refresh(self) -> None:
        """Another token, whether or not the one here looks valid."""
        with self._lock:
            self._refresh()

    def send(self, method: str, url: str, body: Any = None) -> Any:
        """The answer of a Google API, of any status; OSError where there is none."""
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession

        try:
            with AuthorizedSession(self._credentials) as session:
                return session.request(method, url, json=body, timeout=_SECONDS)
        except GoogleAuthError as exc:
            raise ConfigurationError(f"{url} cannot be asked: {exc}. {self._remedy}") from exc

    def _refresh(self) -> None:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        try:
            self._credentials.refresh(Request())
        except GoogleAuthError as exc:
            raise ConfigurationError(f"Google gives no token: {exc}. {self._remedy}") from exc


def _default() -> Any:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return google.auth.default([_SCOPE])[0]
    except DefaultCredentialsError as exc:
        raise ConfigurationError(
            "no Google credentials here. Run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS"
        ) from exc


@functools.cache
def credentials(account: Account | None) -> Credentials:
    """An account's, or this process's."""
    return Credentials(account)
