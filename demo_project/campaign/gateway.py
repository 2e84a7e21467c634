"""Client of the provider of messages and payments, and errors that say what the caller can do about it."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_SECONDS = 10


class ThrottledError(Exception):
    """The provider asks to come back later; nothing was sent."""

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"the provider is busy, try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class RefusedError(Exception):
    """The provider will never accept this request; nothing was sent."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the provider refused: {status}, {reason}")
        self.status = status


class UnavailableError(ConnectionError):
    """The provider failed or hung up: whether it did what it was asked for is unknown."""


def send(to: str, text: str, *, idempotency_key: str, fence: int) -> str:
    """Send one message and return the provider's id of it.

    The provider sends once per `idempotency_key` and answers later calls with the first id. `fence` lets it
    refuse a worker that has lost its job to another one meanwhile.
    """
    message_id: str = _post("/messages", to, text, key=idempotency_key, fence=fence)["message_id"]
    return message_id


def pay(account: str, cents: int, *, idempotency_key: str, fence: int) -> str:
    """Pay to an account and return the provider's id of the payment; key and fence are as those of a message."""
    payment_id: str = _post("/payments", account, str(cents), key=idempotency_key, fence=fence)["message_id"]
    return payment_id


def check(account: str, *, key: str, fence: int) -> None:
    """Raise `RefusedError` unless the account is open. Nothing happens to it."""
    _post("/checks", account, "", key=key, fence=fence)


def find(page: str, key: str) -> str | None:
    """Return what was done first under a key, None when nothing was. `page` is messages or payments."""
    response, content = _request("GET", f"/{page}/{quote(key, safe='')}", None, {})
    if response.status == 404:
        return None
    found: str = _read(response, content)["id"]
    return found


def _post(path: str, to: str, text: str, *, key: str, fence: int) -> Any:
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": key,
        "X-Fence": str(fence),
        # The simulated provider chooses when a worker dies, and has to know which one is asking.
        "X-Worker-Pid": str(os.getpid()),
    }
    return _read(*_request("POST", path, json.dumps({"to": to, "text": text}), headers))


def _read(response: http.client.HTTPResponse, content: bytes) -> Any:
    if response.status == 429:
        raise ThrottledError(int(response.headers.get("Retry-After", "1")))
    if response.status >= 500:
        raise UnavailableError(f"the provider answered {response.status}")
    body = json.loads(content)
    if response.status >= 400:
        raise RefusedError(response.status, body["error"])
    return body


def _request(
    method: str, path: str, body: str | None, headers: dict[str, str]
) -> tuple[http.client.HTTPResponse, bytes]:
    url = os.environ.get("SMS_PROVIDER_URL")
    if not url:
        raise UnavailableError("SMS_PROVIDER_URL is not set; `python -m demo_project.demo` sets it")
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"the provider hung up or is not there: {error}") from error
    finally:
        connection.close()
