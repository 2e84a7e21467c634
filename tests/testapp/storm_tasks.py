"""One task per recovery policy, each with two effects in order, for storms of kills and for long outages."""

from __future__ import annotations

from typing import Any

from django.db import connection

from pgqueue import DidNotHappen, Happened, task

from .matrix_tasks import ask

STEPS = ("reserve", "pay")
OPTIONS: dict[str, Any] = {
    "takes_context": True,
    "max_attempts": 1000,
    "backoff_seconds": 0.1,
    "call_deadline_seconds": 6.0,
}


def run(context: Any, url: str, *, keep: bool = False) -> None:
    for step in STEPS:
        context.effect(
            step,
            lambda key: ask(url, "do", key=key, keep=keep),
            # Nobody was there to be asked.
            did_not_happen=(ConnectionRefusedError,),
        )
        with context.confirming(step):
            write(f"{context.operation_key}:{step}")


def write(name: str) -> None:
    """Leave a trace that nothing keeps from being there twice."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_queue (name, version, created_at) VALUES (%s || '/' || random(), 0, now())", [name]
        )


@task(recovery="transactional", **OPTIONS)
def transactional(context: Any, url: str) -> None:
    write(f"{context.operation_key}:row")
    ask(url, "find", key="anything")


@task(recovery="idempotent", **OPTIONS)
def idempotent(context: Any, url: str) -> None:
    run(context, url, keep=True)


@task(recovery="manual", **OPTIONS)
def manual(context: Any, url: str) -> None:
    run(context, url)


@task(**OPTIONS)
def undeclared(context: Any, url: str) -> None:
    run(context, url)


@task(recovery="probe", **OPTIONS)
def probed(context: Any, url: str) -> None:
    run(context, url)


@probed.probe
def find(context: Any, effect: Any) -> Any:
    found = ask(context.args[0], "find", key=effect.key)
    return Happened(found, reference=found["id"]) if found else DidNotHappen()
