"""One task per recovery policy for the laboratory, each with an effect at a provider and a row of its author."""

from __future__ import annotations

from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from pgqueue import DidNotHappen, Happened, task
from tests.faults.lab.ledger import note

from .matrix_tasks import ask

OPTIONS: dict[str, Any] = {
    "takes_context": True,
    "max_attempts": 1000,
    "backoff_seconds": 0.2,
    "call_deadline_seconds": 3.0,
}


def write(job_id: int) -> None:
    """Leave a row that nothing keeps from being there twice."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO lab_row (job_id) VALUES (%s)", [job_id])


def send(context: Any, url: str, key: str, *, keep: bool) -> Any:
    return ask(url, "do", key=key, job=context.job_id, fence=context.fence, keep=keep)


def run(context: Any, url: str, ledger: str, *, keep: bool = False) -> None:
    note(ledger, "began", job=context.job_id, fence=context.fence)
    context.effect("pay", lambda key: send(context, url, key, keep=keep), did_not_happen=(ConnectionRefusedError,))
    with context.confirming("pay"):
        write(context.job_id)
    note(ledger, "ran", job=context.job_id, fence=context.fence)


@task(recovery="transactional", **OPTIONS)
def transactional(context: Any, url: str, ledger: str) -> None:
    note(ledger, "began", job=context.job_id, fence=context.fence)
    write(context.job_id)
    ask(url, "find", key="anything")
    note(ledger, "ran", job=context.job_id, fence=context.fence)


@task(recovery="idempotent", **OPTIONS)
def idempotent(context: Any, url: str, ledger: str) -> None:
    run(context, url, ledger, keep=True)


@task(recovery="manual", **OPTIONS)
def manual(context: Any, url: str, ledger: str) -> None:
    run(context, url, ledger)


@task(**OPTIONS)
def undeclared(context: Any, url: str, ledger: str) -> None:
    run(context, url, ledger)


@task(recovery="probe", **OPTIONS)
def probed(context: Any, url: str, ledger: str) -> None:
    run(context, url, ledger)


@task(recovery="probe", **OPTIONS)
async def probed_async(context: Any, url: str, ledger: str) -> None:
    note(ledger, "began", job=context.job_id, fence=context.fence)
    call = sync_to_async(partial(send, context, url, keep=False), thread_sensitive=False)
    await context.aeffect("pay", call, did_not_happen=(ConnectionRefusedError,))
    note(ledger, "ran", job=context.job_id, fence=context.fence)


def find(context: Any, effect: Any) -> Any:
    found = ask(context.args[0], "find", key=effect.key)
    return Happened(found, reference=found["id"]) if found else DidNotHappen()


probed.probe(find)
probed_async.probe(find)


@task(recovery="idempotent", takes_context=True, max_attempts=1000, backoff_seconds=0.2)
def plain(context: Any, ledger: str) -> None:
    """Do nothing, often: for the count of transitions and the throughput."""
    note(ledger, "ran", job=context.job_id, fence=context.fence)


POLICIES = ("transactional", "idempotent", "probed", "manual", "undeclared", "probed_async")
