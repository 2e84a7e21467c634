"""One task per recovery policy, each paying at a provider that says where it is to be stopped."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.db import connection

from pgqueue import DidNotHappen, Happened, task


def ask(url: str, page: str, **facts: Any) -> Any:
    """Post to the provider. A connection that is closed without an answer is a `ConnectionError`."""
    client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        client.request("POST", f"/{page}", json.dumps({"pid": os.getpid(), **facts}))
        return json.loads(client.getresponse().read())
    finally:
        client.close()


def swallowing(body: Callable[..., Any]) -> Callable[..., Any]:
    """Let a body that is told to swallow return as if nothing had been."""

    @wraps(body)
    def run(context: Any, url: str, cell: str, swallow: bool = False) -> Any:
        try:
            return body(context, url, cell)
        except ConnectionError:
            if not swallow:
                raise
            return "as if nothing had been"

    return run


@swallowing
def pay(context: Any, url: str, cell: str) -> Any:
    facts = {"cell": cell, "job": context.job_id}
    ask(url, "before", **facts)
    paid = context.effect(
        "pay",
        lambda key: ask(url, "pay", key=key, fence=context.fence, **facts),
        reference=lambda paid: paid["id"],
    )
    ask(url, "stored", **facts)
    with context.confirming("pay"):
        ask(url, "confirming", **facts)
    return paid["id"]


OPTIONS: dict[str, Any] = {"takes_context": True, "backoff_seconds": 0.01}


@task(recovery="idempotent", **OPTIONS)
def idempotent(context: Any, url: str, cell: str, swallow: bool = False) -> Any:
    return pay(context, url, cell, swallow)


@task(recovery="manual", **OPTIONS)
def manual(context: Any, url: str, cell: str, swallow: bool = False) -> Any:
    return pay(context, url, cell, swallow)


@task(**OPTIONS)
def undeclared(context: Any, url: str, cell: str, swallow: bool = False) -> Any:
    return pay(context, url, cell, swallow)


@task(recovery="probe", call_deadline_seconds=0.1, **OPTIONS)
def probed(context: Any, url: str, cell: str, swallow: bool = False) -> Any:
    return pay(context, url, cell, swallow)


@probed.probe
def find(context: Any, effect: Any) -> Any:
    found = ask(context.args[0], "find", key=effect.key)
    return Happened(found, reference=found["id"]) if found else DidNotHappen()


@task(recovery="transactional", **OPTIONS)
def transactional(context: Any, url: str, cell: str, swallow: bool = False) -> Any:
    return write(context, url, cell, swallow)


@swallowing
def write(context: Any, url: str, cell: str) -> None:
    """Its effect is a row of its own database."""
    ask(url, "before", cell=cell)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_queue (name, version, created_at) VALUES (%s || random(), 0, now())", [f"{cell}:"]
        )
    ask(url, "look", cell=cell)
