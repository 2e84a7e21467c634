"""Tasks for the tests of the enqueueing, the backend, the execution and the worker's surroundings."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.utils import timezone, translation

from pgqueue import Bury, Retry, task
from pgqueue.models import Job, Queue

SECRET = "S3CRET-of-the-tests"
mood: contextvars.ContextVar[str] = contextvars.ContextVar("mood", default="calm")
left_open: list[Any] = []
"""What a careless task never closed; kept, so that nothing is closed by garbage collection."""


@task
def double(number: int) -> int:
    return number * 2


@task
def give_back(value: Any = None) -> Any:
    return value


@task(priority=7, queue_name="mail", max_attempts=3, tenant="acme")
def with_options(*args: Any) -> None:
    pass


@task
async def double_later(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


@task(takes_context=True)
async def attempt_later(context: Any) -> int:
    return context.attempt


@task(takes_context=True)
def describe_context(context: Any) -> dict[str, Any]:
    return {
        "kind": type(context).__name__,
        "job_id": context.job_id,
        "result_id": context.task_result.id,
        "attempt": context.attempt,
        "fence": context.fence,
        "operation_key": context.operation_key,
        "status": str(context.task_result.status),
        "worker_ids": context.task_result.worker_ids,
        "args": context.task_result.args,
    }


@task(takes_context=True)
def succeed_on_attempt(context: Any, number: int) -> int:
    if context.attempt < number:
        raise ConnectionError("the remote is away")
    return context.attempt


# -- failures ----------------------------------------------------------------------------------------------


class TimedOutError(Exception):
    """A system failure of the tests' own."""


class InvariantError(ValueError):
    """A content failure of the tests' own."""


class UnprintableError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


KINDS: dict[str, type[BaseException]] = {
    "timed_out": TimedOutError,
    "invariant": InvariantError,
    "type": TypeError,
    "assertion": AssertionError,
    "value": ValueError,
    "connection": ConnectionError,
    "timeout": TimeoutError,
    "unprintable": UnprintableError,
    "system_exit": SystemExit,
    "keyboard_interrupt": KeyboardInterrupt,
    "generator_exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
}


@task(backoff_seconds=100)
def fail_with(kind: str, message: str = "no") -> None:
    raise KINDS[kind](message)


@task(backoff_seconds=100)
async def fail_later_with(kind: str, message: str = "no") -> None:
    raise KINDS[kind](message)


@task(bury_on=(InvariantError,), retry_on=(TypeError,), backoff_seconds=100)
def fail_as_declared(kind: str) -> None:
    raise KINDS[kind]("as declared")


@task(max_attempts=1)
def fail_once(message: str = "no") -> None:
    raise RuntimeError(message)


@task(max_attempts=3)
def fail_three_times() -> None:
    raise RuntimeError("no")


@task(max_attempts=2)
def fail_with_secret(token: str) -> None:
    password = token
    raise ConnectionError(f"login failed: password={password} url=https://me:{token}@example.org/")


@task(max_attempts=1)
def fail_at_length(megabytes: int) -> None:
    raise RuntimeError("x" * megabytes * 1_000_000)


@task(max_attempts=1)
def fail_with_nul() -> None:
    raise ValueError("a\x00b", {"c\x00": 1})


@task(max_attempts=1)
def fail_with_surrogate() -> None:
    raise OSError(b"caf\xff.txt".decode("utf-8", "surrogateescape"))


@task(backoff_seconds=100)
def ask_for_retry(seconds: float | None = None) -> None:
    raise Retry("not yet", after_seconds=seconds)


@task
def give_up(reason: str = "hopeless") -> None:
    raise Bury(reason)


@task
def return_nul(in_key: bool) -> dict[str, Any]:
    return {"a\x00": 1} if in_key else {"v": "a\x00"}


@task
def return_surrogate() -> str:
    return "\ud800"


@task
def return_large(size_bytes: int) -> str:
    return "x" * size_bytes


@task(max_attempts=1)
def fail_within_a_failure() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError(ValueError("outer"), object()) from error


@task
def return_unserializable() -> Any:
    return {1, 2}


# -- surroundings ------------------------------------------------------------------------------------------


def _run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _run_beneath_django(statement: str) -> None:
    connection.ensure_connection()
    connection.connection.execute(statement)


def _leave_block_open() -> None:
    block = transaction.atomic()
    block.__enter__()
    left_open.append(block)
    _run("SELECT 1")


def _leave_nested_blocks_open() -> None:
    _leave_block_open()
    _leave_block_open()


def _close_within_block() -> None:
    _leave_block_open()
    connection.close()


def _leave_autocommit_off() -> None:
    transaction.set_autocommit(False)
    _run("SET search_path = pg_catalog")


def _break_transaction() -> None:
    block = transaction.atomic()
    block.__enter__()
    left_open.append(block)
    try:
        _run("SELECT 1 / 0")
    except Exception:
        left_open.append("broken")


def _begin_by_hand() -> None:
    _run("BEGIN", "SET LOCAL search_path = pg_catalog")


def _set_role_in_block() -> None:
    _run("SET ROLE pg_monitor")
    _leave_block_open()


def _leave_hook() -> None:
    _leave_block_open()
    transaction.on_commit(lambda: left_open.append("hook ran"))


def _lose_session() -> None:
    try:
        _run("SELECT pg_terminate_backend(pg_backend_pid())")
    except Exception:
        left_open.append("lost")


MISDEEDS: dict[str, Any] = {
    "open_block": _leave_block_open,
    "nested_blocks": _leave_nested_blocks_open,
    "closed_within_block": _close_within_block,
    "autocommit_off": _leave_autocommit_off,
    "broken_transaction": _break_transaction,
    "begun_by_hand": _begin_by_hand,
    "search_path": lambda: _run("SET search_path = pg_catalog"),
    "beneath_django": lambda: _run_beneath_django("SET search_path = pg_catalog"),
    "role": lambda: _run("SET ROLE pg_monitor"),
    "role_in_block": _set_role_in_block,
    "session_authorization": lambda: _run("SET SESSION AUTHORIZATION pg_monitor"),
    "time_zone": lambda: _run("SET TIME ZONE 'Asia/Tokyo'"),
    "statement_timeout": lambda: _run("SET statement_timeout = 12345"),
    "temporary_table": lambda: _run("CREATE TEMPORARY TABLE pgqueue_left (id int)"),
    "advisory_lock": lambda: _run("SELECT pg_advisory_lock(4711)"),
    "cursor": lambda: _run("DECLARE left_cursor CURSOR WITH HOLD FOR SELECT 1"),
    "listening": lambda: _run("LISTEN left_channel"),
    "hook": _leave_hook,
    "lost_session": _lose_session,
    "language": lambda: translation.activate("de"),
    "django_time_zone": lambda: timezone.activate("Asia/Tokyo"),
    "context_variable": lambda: mood.set("wild"),
}


@task
def misbehave(misdeed: str) -> None:
    MISDEEDS[misdeed]()


@task
def misbehave_and_fail(misdeed: str) -> None:
    MISDEEDS[misdeed]()
    raise InvariantError("the author's own error")


@task
def look_around() -> dict[str, Any]:
    """Tell what the task finds, as it is found."""
    found: dict[str, Any] = {
        "in_block": connection.in_atomic_block,
        "autocommit": connection.get_autocommit(),
        "needs_rollback": connection.needs_rollback,
        "hooks": len(connection.run_on_commit),
        "queries": len(connection.queries_log),
        "language": translation.get_language(),
        "django_time_zone": timezone.get_current_timezone_name(),
        "mood": mood.get(),
    }
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('search_path'), current_user::text, current_setting('TimeZone'),"
            " current_setting('statement_timeout'), to_regclass('pg_temp.pgqueue_left') IS NULL,"
            " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),"
            " (SELECT count(*) FROM pg_cursors WHERE is_holdable), cardinality(ARRAY(SELECT pg_listening_channels())),"
            " current_setting('transaction_isolation'), current_setting('role')"
        )
        names = (
            *("path", "user", "time_zone", "timeout", "no_table", "locks", "cursors", "channels", "isolation", "role"),
        )
        found |= dict(zip(names, cursor.fetchone(), strict=True))
    return found


@task
def tell_session() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@task
def hold_connection(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])


@task
def count_sessions(name: str) -> int:
    """Count the server's sessions on this database that no test of another process opened."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name])
        return cursor.fetchone()[0]


@task
def insert_queue(name: str) -> None:
    Queue.objects.create(name=name, created_at=timezone.now())


@task
def insert_queue_and_divide(name: str) -> None:
    """Break the transaction the task is in, and raise the database's own error out of it."""
    with transaction.atomic():
        Queue.objects.create(name=name, created_at=timezone.now())
        _run("SELECT 1 / 0")


@task
def insert_queue_and_fail(name: str) -> None:
    with transaction.atomic():
        Queue.objects.create(name=name, created_at=timezone.now())
        raise InvariantError("rolled back")


@task
def count_jobs() -> int:
    return Job.objects.count()


@task
async def count_jobs_through_a_thread() -> int:
    return await sync_to_async(Job.objects.count)()


@task
async def count_jobs_natively() -> int:
    return await Job.objects.acount()


@task
async def session_of_async_orm() -> bool:
    """Say whether the ORM's asynchronous calls use the connection of the worker's thread."""
    alias = await sync_to_async(lambda: id(connections["default"].connection))()
    again = await sync_to_async(lambda: id(connections["default"].connection))()
    return alias == again


@task
async def block_the_loop(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


@task
def enqueue_another(number: int, after_seconds: float = 0.0) -> str:
    time.sleep(after_seconds)
    return double.enqueue(number).id


@task(recovery="transactional")
def commit_nothing() -> None:
    """A transaction that holds its own completion and nothing else."""


@task
def nothing() -> None:
    pass


recorded: list[int] = []
"""What `record` was run with, in this process."""


@task
def record(number: int) -> None:
    recorded.append(number)


@task
def tell_lease() -> float:
    """Tell the seconds left of this run's own lease."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM lease_until - now())::float8 FROM pgqueue_job WHERE state = 'running'"
        )
        return cursor.fetchone()[0]


couple = threading.Barrier(2, timeout=20)


@task
def meet() -> None:
    """Return once another run of this task is there too."""
    couple.wait()


gate = threading.Event()
at_gate: list[bool] = []


@task
def wait_for_gate() -> None:
    at_gate.append(True)
    gate.wait(30)


class ApiError(Exception):
    """What many clients raise: attributes are the response's. Without one, each attribute is a RecursionError."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.response, name)


class ExitingError(TypeError):
    """Every attribute that is asked for exits the program."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(name)


class HiddenError(TypeError):
    """It lies about its class, and what it says of itself raises."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @property
    def sqlstate(self) -> Any:
        raise RuntimeError("no sqlstate")

    @property
    def retry_after(self) -> Any:
        raise SystemExit("no retry_after")

    @property
    def __cause__(self) -> Any:
        raise RuntimeError("no cause")


class _Unhashable(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("no eq")


class UnhashableError(TypeError, metaclass=_Unhashable):
    """Its class cannot be looked up in a table."""


FOREIGN: dict[str, type[BaseException]] = {
    "api": ApiError,
    "exiting": ExitingError,
    "hidden": HiddenError,
    "unhashable": UnhashableError,
}


@task(max_attempts=2)
def fail_as_a_client(kind: str) -> None:
    raise FOREIGN[kind]("the card was declined")


@task(max_attempts=2)
async def fail_later_as_a_client(kind: str) -> None:
    await asyncio.sleep(0)
    raise FOREIGN[kind]("the card was declined")


@task(max_attempts=2, recovery="transactional")
def fail_in_a_transaction_as_a_client(kind: str) -> None:
    Queue.objects.update(name="renamed")
    raise FOREIGN[kind]("the card was declined")


@task(max_attempts=2)
def fail_as_a_group(kind: str) -> None:
    raise ExceptionGroup("both", [FOREIGN[kind]("the card was declined"), FOREIGN[kind]("again")])


def _fail_deeper() -> None:
    raise ZeroDivisionError("on purpose")


@task(max_attempts=2, backoff_seconds=0.001)
def fail_deep(argument: str) -> None:
    _fail_deeper()


@task(max_attempts=2, backoff_seconds=0.001)
async def fail_deep_later(argument: str) -> None:
    await asyncio.sleep(0)
    _fail_deeper()


@task(max_attempts=2, backoff_seconds=0.001, recovery="transactional")
def fail_deep_in_a_transaction(argument: str) -> None:
    Queue.objects.update(name="renamed")
    _fail_deeper()


@task(max_attempts=1, recovery="idempotent", takes_context=True)
def fail_deep_in_an_effect(context: Any, argument: str) -> None:
    context.effect("pay", lambda key: _fail_deeper(), did_not_happen=(ZeroDivisionError,))


@task(max_attempts=1)
def fail_from(argument: str) -> None:
    try:
        _fail_deeper()
    except ZeroDivisionError as error:
        raise LookupError("no such card") from error
