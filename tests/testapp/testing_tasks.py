"""Tasks for the tests of the helpers that applications test with."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction
from django.utils import translation

from pgqueue import Bury, Retry, task
from pgqueue.testing import expire_lease, take_over_now

mood: contextvars.ContextVar[str] = contextvars.ContextVar("mood", default="calm")
recorded: list[Any] = []
left_open: list[Any] = []


@task
def note(value: Any = None) -> Any:
    recorded.append(value)
    return value


@task
def make_group(name: str) -> int:
    return Group.objects.create(name=name).pk


@task
async def make_group_later(name: str) -> int:
    await asyncio.sleep(0)
    group = await sync_to_async(Group.objects.create)(name=name)
    return group.pk


@task(takes_context=True)
def succeed_at(context: Any, attempt: int) -> int:
    if context.attempt < attempt:
        raise ConnectionError("the remote is away")
    return context.attempt


@task(max_attempts=3)
def fail(message: str = "no") -> None:
    raise ConnectionError(message)


@task
def give_up() -> None:
    raise Bury("no such address")


@task
def ask_again(seconds: float) -> None:
    raise Retry("not yet", after_seconds=seconds)


@task
def enqueue_one_less(number: int) -> None:
    recorded.append(number)
    if number > 0:
        enqueue_one_less.enqueue(number - 1)


@task
def enqueue_itself() -> None:
    enqueue_itself.enqueue()


@task
def insert_twice(name: str) -> None:
    """Break the transaction it is in, as an uncaught database error does."""
    Group.objects.create(name=name)
    Group.objects.create(name=name)


@task
def insert_twice_and_swallow(name: str) -> None:
    try:
        insert_twice.call(name)
    except IntegrityError:
        recorded.append("swallowed")


@task
def insert_twice_in_block(name: str) -> bool:
    """Catch the error where Django says one should."""
    Group.objects.create(name=name)
    try:
        with transaction.atomic():
            Group.objects.create(name=name)
    except IntegrityError:
        return False
    return True


@task
def fail_in_block_without_savepoint(name: str) -> None:
    Group.objects.create(name=name)
    with transaction.atomic(savepoint=False):
        raise ConnectionError("no")


@task
def fail_after_write(name: str) -> None:
    Group.objects.create(name=name)
    raise ConnectionError("no")


@task
def write_durably(name: str) -> None:
    with transaction.atomic(durable=True):
        Group.objects.create(name=name)


@task
def leave_block_open(name: str) -> None:
    block = transaction.atomic()
    block.__enter__()
    left_open.append(block)
    Group.objects.create(name=name)


@task
def close_connection() -> None:
    connection.close()


@task
def plan_and_fail() -> None:
    transaction.on_commit(lambda: recorded.append("hook ran"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


@task
def plan() -> None:
    transaction.on_commit(lambda: recorded.append("hook ran"))


@task
def look_around() -> list[Any]:
    return [translation.get_language(), mood.get()]


@task
def tell_settings() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'),"
            " current_setting('enable_seqscan'), current_setting('jit')"
        )
        return list(cursor.fetchone())


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
def exit_process() -> None:
    raise SystemExit(3)


@task
def fail_the_test() -> None:
    pytest.fail("the task says so")


@task
def return_set() -> Any:
    return {1}


@task(takes_context=True)
def lose_own_lease(context: Any) -> None:
    recorded.append(context.lease_lost)
    expire_lease(context.job_id)
    recorded.append(context.lease_lost)
    take_over_now()


@task(takes_context=True)
def tell_context(context: Any) -> list[Any]:
    return [context.job_id, context.attempt, context.lease_lost, context.stop_requested, context.operation_key]
