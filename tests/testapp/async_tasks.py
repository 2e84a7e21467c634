"""Tasks on the event loop, and tasks that run for too long."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.utils import translation

from pgqueue import task
from pgqueue.exceptions import JobTimeoutError
from pgqueue.models import Job

from .fault_tasks import GIVE_UP_SECONDS, note, wait_for_file

gate = threading.Event()
"""What tasks wait for, in the process of the test."""
seen: list[Any] = []
"""What tasks saw, in the process of the test."""
colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def reset() -> None:
    gate.clear()
    seen.clear()


async def _until_open() -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not gate.is_set():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


# -- on the loop -------------------------------------------------------------------------------------------


@task
async def nothing_async() -> None:
    pass


@task
async def wait_async(name: str = "job") -> str:
    seen.append(name)
    await _until_open()
    return name


@task
async def meet_async(number: int) -> None:
    """Return once so many runs are here at once."""
    seen.append(number)
    while len(seen) < number:
        await asyncio.sleep(0.005)


_here: set[int] = set()


@task
async def count_neighbours(number: int) -> None:
    """Tell how many runs of this task are under way."""
    _here.add(number)
    seen.append(len(_here))
    await asyncio.sleep(0.01)
    _here.discard(number)


@task
async def count_sessions(number: int) -> None:
    """Tell how many runs of this task have used the ORM and not ended."""
    await Job.objects.acount()
    _here.add(number)
    seen.append(len(_here))
    await asyncio.sleep(0.01)
    _here.discard(number)


@task
async def use_the_orm_and_wait(name: str) -> None:
    seen.append(f"{name} began")
    await Job.objects.acount()
    seen.append(f"{name} asked")
    await _until_open()


@task
def open_the_gate() -> None:
    gate.set()


@task
async def open_the_gate_async() -> None:
    gate.set()


@task
def wait_at_the_gate() -> None:
    assert gate.wait(GIVE_UP_SECONDS)


@task
async def paint(name: str) -> list[str]:
    """Set what a context holds, and tell what was there before."""
    before = [colour.get(), str(translation.get_language())]
    colour.set(name)
    translation.activate("de")
    await asyncio.sleep(0.02)
    assert colour.get() == name
    return before


# -- the ORM beneath a loop --------------------------------------------------------------------------------


def _session() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


def _set_time_zone() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")
    time.sleep(0.01)


def _time_zone() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW TimeZone")
        return cursor.fetchone()[0]


@task
async def sessions_async() -> list[int]:
    return [await sync_to_async(_session)(), await sync_to_async(_session)()]


@task
async def leave_block_open_async() -> int:
    def leave_open() -> int:
        block = transaction.atomic()
        block.__enter__()
        seen.append(block)
        return _session()

    return await sync_to_async(leave_open)()


@task
async def orm_in_every_way(job_id: int) -> list[str]:
    def in_a_block() -> str:
        with transaction.atomic():
            return Job.objects.select_for_update().get(pk=job_id).state

    async def again() -> str:
        return (await Job.objects.aget(pk=job_id)).state

    return [
        await sync_to_async(in_a_block)(),
        (await Job.objects.aget(pk=job_id)).state,
        await sync_to_async(in_a_block, thread_sensitive=False)(),
        await sync_to_async(lambda: async_to_sync(again)())(),
    ]


@task
async def soil_loose_threads() -> None:
    await asyncio.gather(*(sync_to_async(_set_time_zone, thread_sensitive=False)() for _ in range(20)))


@task
async def look_at_loose_threads() -> list[str]:
    return await asyncio.gather(*(sync_to_async(_time_zone, thread_sensitive=False)() for _ in range(20)))


# -- what is left behind -----------------------------------------------------------------------------------

kept: set[asyncio.Task[None]] = set()


async def _linger(job_id: int) -> None:
    try:
        await asyncio.sleep(GIVE_UP_SECONDS)
    finally:
        await asyncio.sleep(0.05)
        seen.append((await Job.objects.aget(pk=job_id)).state)


@task(takes_context=True)
async def leave_a_task(context: Any) -> None:
    kept.add(asyncio.create_task(_linger(context.job_id)))
    await asyncio.sleep(0)


@task(takes_context=True)
async def shield_a_task(context: Any) -> None:
    await asyncio.shield(_linger(context.job_id))


def _work_at_the_gate() -> None:
    seen.append("began")
    assert gate.wait(GIVE_UP_SECONDS)
    seen.append("ended")


@task
async def wait_on_a_thread(thread_sensitive: bool) -> None:
    await sync_to_async(_work_at_the_gate, thread_sensitive=thread_sensitive)()


async def _exit() -> None:
    raise SystemExit("on purpose")


@task(max_attempts=1)
async def start_what_exits() -> None:
    await asyncio.create_task(_exit())


@task
async def block_for(seconds: float) -> None:
    time.sleep(seconds)


@task
async def stop_the_loop() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "went on"


# -- too long ----------------------------------------------------------------------------------------------


@task(backoff_seconds=100)
async def forever_async() -> None:
    seen.append("began")
    await asyncio.Event().wait()


@task(bury_on=(JobTimeoutError,))
async def forever_async_once() -> None:
    await asyncio.Event().wait()


@task
async def fail_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionError("while cleaning up") from None


@task(backoff_seconds=100)
def forever() -> None:
    seen.append("began")
    while True:
        time.sleep(0.005)


@task
def forever_unmoved() -> str:
    """Swallow the interruption, once, and return."""
    try:
        forever.func()
    except Exception as error:
        return type(error).__name__
    return "never"


@task(takes_context=True)
def until_stopped(context: Any) -> bool:
    """Look, and never be interrupted but at a look."""
    seen.append("began")
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < deadline:
        try:
            if context.stop_requested:
                return True
            time.sleep(0.005)
        except JobTimeoutError:
            continue
    return False


@task(takes_context=True)
def raise_when_stopped(context: Any) -> None:
    seen.append("began")
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < deadline:
        context.raise_if_stopped()
        time.sleep(0.005)


@task(backoff_seconds=100)
def wait_in_c(name: str = "stuck") -> None:
    """Wait where no exception reaches: inside a lock."""
    seen.append(name)
    try:
        gate.wait(GIVE_UP_SECONDS)
    finally:
        seen.append("over")


@task
def sleep_for(seconds: float) -> None:
    time.sleep(seconds)


@task
async def sleep_for_async(seconds: float) -> None:
    await asyncio.sleep(seconds)


# -- in processes of their own -----------------------------------------------------------------------------


def _claim_the_effect(directory: str, name: str) -> None:
    """Say `overlap` when another process is still at it: its lock lasts as long as it lives."""
    effect = os.open(Path(directory, f"effect-{name}"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(effect, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note(directory, "overlap", name)


@task
def hang_once(directory: str, name: str = "stuck") -> None:
    """Never return, the first time, and listen to nothing."""
    note(directory, "start", name)
    _claim_the_effect(directory, name)
    if Path(directory, "hung").exists():
        return
    Path(directory, "hung").touch()
    while True:
        try:
            wait_for_file(Path(directory, "never"))
        except BaseException:
            note(directory, "unmoved", name)


@task
async def shield_once(directory: str, name: str = "stuck") -> None:
    """Refuse to be cancelled, the first time."""
    note(directory, "start", name)
    _claim_the_effect(directory, name)
    if Path(directory, "hung").exists():
        return
    Path(directory, "hung").touch()
    while True:
        try:
            await asyncio.sleep(GIVE_UP_SECONDS)
        except asyncio.CancelledError:
            note(directory, "unmoved", name)


@task
async def block_once(directory: str, seconds: float, name: str = "stuck") -> None:
    """Keep the loop to itself, the first time."""
    note(directory, "start", name)
    _claim_the_effect(directory, name)
    if not Path(directory, "hung").exists():
        Path(directory, "hung").touch()
        time.sleep(seconds)
    note(directory, "end", name)


@task
async def wait_for_async(directory: str, name: str = "job", gate: str = "go") -> None:
    note(directory, "start", name)
    while not Path(directory, gate).exists():
        await asyncio.sleep(0.02)
    note(directory, "end", name)


@task(settle="each")
async def wait_and_settle_alone(directory: str) -> None:
    await wait_for_async.func(directory)


@task(recovery="manual", takes_context=True)
async def wait_and_call(context: Any, directory: str) -> None:
    await context.aeffect("sms", lambda key: wait_for_async.func(directory))


@task
def hang_for_good(directory: str, name: str) -> None:
    note(directory, "start", name)
    while True:
        try:
            wait_for_file(Path(directory, "never"))
        except BaseException:
            note(directory, "unmoved", name)
