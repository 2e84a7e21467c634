"""Tasks that tell the fault tests where they are, through files: those need no connection that a test may cut."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connection, connections

from pgqueue import Retry, task

GIVE_UP_SECONDS = 120

WICKED: dict[str, type[BaseException]] = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "MemoryError": MemoryError,
}


def note(directory: str, event: str, name: str) -> None:
    """Append one line in one write, so that lines of many processes never mix."""
    line = f"{event} {name} {os.getpid()}\n".encode()
    journal = os.open(Path(directory, "journal"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(journal, line)
    finally:
        os.close(journal)


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path.name}")
        time.sleep(0.02)


def stop_the_import() -> None:
    """Let a test hold a worker in its start, after its signal handlers and before its first claim."""
    directory = os.environ.get("PGQUEUE_TEST_HOLD_IMPORT")
    if directory is not None:
        note(directory, "importing", "tasks")
        wait_for_file(Path(directory, "import"))


@task
def nothing() -> None:
    pass


@task
def ask_the_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@task
async def nothing_async() -> None:
    await asyncio.sleep(0)


@task
async def ask_the_database_async() -> None:
    await sync_to_async(ask_the_database.func)()


@task
def tell_time() -> float:
    return time.time()


@task
def pass_by(directory: str, name: str = "job") -> None:
    note(directory, "start", name)


@task(takes_context=True, key_order="strict")
def take_turns_strictly(context: Any, directory: str, name: str) -> None:
    _fail_now_and_then(context, directory, name)


@task(takes_context=True)
def take_turns(context: Any, directory: str, name: str) -> None:
    _fail_now_and_then(context, directory, name)


def _fail_now_and_then(context: Any, directory: str, name: str) -> None:
    note(directory, "start", name)
    try:
        time.sleep(random.random() * 0.01)
        if context.attempt < 4 and random.random() < 0.1:
            raise Retry("not now", after_seconds=0.02)
    finally:
        note(directory, "end", name)


@task
def wait_for(directory: str, name: str = "job", gate: str = "go") -> None:
    note(directory, "start", name)
    wait_for_file(Path(directory, gate))
    note(directory, "end", name)


@task(settle="each")
def wait_and_settle_alone(directory: str) -> None:
    wait_for.func(directory)


@task(recovery="transactional")
def write_row(directory: str, name: str = "job") -> None:
    """Leave a row that is there only if the completion is."""
    note(directory, "start", name)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pgqueue_queue (name, version, created_at) VALUES ('row:' || random(), 0, now())")


@task(recovery="manual", takes_context=True)
def wait_and_call(context: Any, directory: str) -> None:
    context.effect("sms", lambda key: wait_for.func(directory))


@task
def wait_for_own_gate(directory: str) -> None:
    """Wait at a gate numbered by the start: `gate-1` for the first run, `gate-2` for the second."""
    note(directory, "start", "numbered")
    number = Path(directory, "journal").read_text().count("start numbered")
    wait_for_file(Path(directory, f"gate-{number}"))


@task(takes_context=True)
def retry_at_once(context: Any, directory: str) -> None:
    note(directory, "start", f"attempt-{context.attempt}")
    if context.attempt == 1:
        wait_for_file(Path(directory, "go"))
        raise Retry("again", after_seconds=0)


@task(max_run_seconds=1, max_attempts=1)
async def leave_a_stubborn_side_task(directory: str) -> None:
    """Return at once, and leave something on the loop that swallows every cancellation."""

    async def go_on() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    _side_tasks.append(asyncio.ensure_future(go_on()))
    note(directory, "start", "job")


_side_tasks: list[Any] = []


@task(max_attempts=1)
def last_for(directory: str, seconds: float, name: str = "job") -> None:
    note(directory, "start", name)
    time.sleep(seconds)
    note(directory, "end", name)


@task
def use_up_descriptors(directory: str) -> None:
    """Leave the process no descriptor to open anything with. A second run leaks nothing."""
    note(directory, "start", "leak")
    if Path(directory, "go").exists():
        return
    wait_for_file(Path(directory, "leak"))
    note(directory, "full", "descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            _leaked.append(os.open(os.devnull, os.O_RDONLY))
    wait_for_file(Path(directory, "go"))


_leaked: list[int] = []


@task
def end_the_thread(directory: str) -> None:
    """End the thread beneath the interpreter, once. A second run returns."""
    note(directory, "start", "vanish")
    if Path(directory, "journal").read_text().count("start vanish") == 1:
        ctypes.CDLL(None).pthread_exit(None)


@task
async def wait_for_async(directory: str, name: str = "job") -> None:
    note(directory, "start", name)
    while not Path(directory, "go").exists():
        await asyncio.sleep(0.02)


@task
def close_the_loops_descriptors(directory: str, which: str) -> None:
    """Close descriptors of the worker's event loop, as a library does that closes all it finds after a fork."""
    note(directory, "start", "closer")
    (loop,) = (one for one in gc.get_objects() if isinstance(one, asyncio.BaseEventLoop) and one.is_running())
    found: dict[str, Any] = {"selector": loop._selector, "wakeup": loop._csock}  # type: ignore[attr-defined]
    os.close(found[which].fileno())


@task
def kill_the_worker(directory: str) -> None:
    note(directory, "start", "killer")
    os.kill(os.getpid(), signal.SIGKILL)


@task
def exit_at_once(directory: str, name: str) -> None:
    note(directory, "poison", name)
    os._exit(3)


@task(max_attempts=1)
def raise_wicked(name: str) -> None:
    raise WICKED[name]("on purpose")


@task(max_attempts=1)
async def raise_wicked_async(name: str) -> None:
    await asyncio.sleep(0)
    raise WICKED[name]("on purpose")


@task
def end_the_thread_after_return() -> None:
    """Raise SystemExit on the worker's thread once the task has returned, when its connection is cleaned."""
    mine = connections[DEFAULT_DB_ALIAS]
    mine.ensure_connection()

    def close() -> None:
        del mine.close
        mine.close()
        raise SystemExit("on purpose")

    mine.close = close  # type: ignore[method-assign]


@task(takes_context=True, max_attempts=1)
def say_when_lost(context: Any, directory: str) -> None:
    note(directory, "start", "job")
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not context.lease_lost and time.monotonic() < deadline:
        time.sleep(0.02)
    note(directory, "lost", "job")
    wait_for_file(Path(directory, "go"))


stop_the_import()


@task
def note_and_return(directory: str, name: str) -> str:
    note(directory, "start", name)
    return name
