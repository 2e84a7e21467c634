"""Client of the SMS provider: one call, and errors that say what the caller can do about it."""

from __future__ import annotations

import http.client
import json
import os
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 10


class ThrottledError(Exception):
    """The provider asks to come back later; nothing was sent."""

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"the SMS provider is busy, try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class RefusedError(Exception):
    """The provider will never accept this request; nothing was sent."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the SMS provider refused: {status}, {reason}")
        self.status = status


class UnavailableError(ConnectionError):
    """The provider failed or hung up: whether a message was sent is unknown."""


def send(to: str, text: str, *, idempotency_key: str, fence: int) -> str:
    """Send one message and return the provider's id of it.

    The provider sends once per `idempotency_key` and answers later calls with the first id. `fence` lets it
    refuse a worker that has lost its job to another one meanwhile.
    """
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": idempotency_key,
        "X-Fence": str(fence),
        # The simulated provider chooses when a worker dies, and has to know which one is asking.
        "X-Worker-Pid": str(os.getpid()),
    }
    response, content = _post("/messages", json.dumps({"to": to, "text": text}), headers)
    if response.status == 429:
        raise ThrottledError(int(response.headers.get("Retry-After", "1")))
    if response.status >= 500:
        raise UnavailableError(f"the SMS provider answered {response.status}")
    body = json.loads(content)
    if response.status >= 400:
        raise RefusedError(response.status, body["error"])
    message_id: str = body["message_id"]
    return message_id


def _post(path: str, body: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
    url = os.environ.get("SMS_PROVIDER_URL")
    if not url:
        raise UnavailableError("SMS_PROVIDER_URL is not set; `python -m demo_project.demo` sets it")
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"the SMS provider hung up or is not there: {error}") from error
    finally:
        connection.close()
