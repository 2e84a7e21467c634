"""Tasks that do to their process what no task should. The fault tests run each beside others."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection

from pgqueue import task

from .fault_tasks import note

HANGING_SECONDS = 600.0
MEMORY_LEFT = 64 * 1024 * 1024
DEEDS: dict[str, Callable[[], Any]] = {}
_kept: list[Any] = []


def deed(function: Callable[[], Any]) -> Callable[[], Any]:
    DEEDS[function.__name__] = function
    return function


@task(max_attempts=3)
def do(directory: str, name: str) -> None:
    note(directory, "start", name)
    DEEDS[name]()


def hang() -> None:
    time.sleep(HANGING_SECONDS)


class Broken:
    """A stream that can do nothing."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("broken on purpose")


# -- the process dies --------------------------------------------------------------------------------------


@deed
def exit_at_once() -> None:
    os._exit(3)


@deed
def abort() -> None:
    os.abort()


@deed
def segfault() -> None:
    ctypes.string_at(0)


@deed
def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@deed
def overflow_the_stack() -> None:
    """Recursion in C, which no limit of Python's counts."""
    callback_type = ctypes.CFUNCTYPE(None)

    def again() -> None:
        callback()

    callback = callback_type(again)
    sys.setrecursionlimit(10_000_000)
    callback()


# -- the process runs on, with something left in it --------------------------------------------------------


@deed
def leave_a_thread() -> None:
    threading.Thread(target=hang, name="left behind", daemon=False).start()


@deed
def leave_a_pool() -> None:
    pool = ThreadPoolExecutor(1)
    pool.submit(hang)
    _kept.append(pool)


@deed
def leave_a_child() -> None:
    child = multiprocessing.get_context("fork").Process(target=hang)
    child.start()
    _kept.append(child)


@deed
def leave_a_hanging_hook() -> None:
    atexit.register(hang)


@deed
def leave_a_thread_that_holds_the_interpreter() -> None:
    """From the exit on: a hook starts a call in C that never gives the interpreter back."""
    atexit.register(lambda: ctypes.PyDLL(None).sleep(int(HANGING_SECONDS)))


@deed
def fork_and_return() -> None:
    os.fork()


@deed
def fork_and_sleep() -> None:
    if os.fork() == 0:
        hang()
        os._exit(0)


@deed
def fork_and_raise() -> None:
    if os.fork() == 0:
        raise ValueError("in the copy")


@deed
def exit_from_a_thread() -> None:
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()


@deed
def replace_the_hook_of_threads() -> None:
    threading.excepthook = Broken()
    thread = threading.Thread(target=DEEDS.__getitem__, args=("nothing",))
    thread.start()
    thread.join()


# -- signals -----------------------------------------------------------------------------------------------


@deed
def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


@deed
def send_sigint() -> None:
    """As `_thread.interrupt_main`: the process drains."""
    os.kill(os.getpid(), signal.SIGINT)


@deed
def replace_the_handler() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@deed
def ignore_sigterm_in_c() -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGTERM, signal.SIG_IGN.value)


@deed
def start_a_session() -> None:
    with contextlib.suppress(PermissionError):
        os.setsid()


# -- the interpreter and the process's surroundings --------------------------------------------------------


@deed
def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(3)


@deed
def limit_memory() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LEFT, before[1]))
    try:
        bytearray(4 * MEMORY_LEFT)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@deed
def change_directory() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)


@deed
def change_umask_and_environment() -> None:
    os.umask(0o777)
    for name in list(os.environ):
        if name != "PATH":
            del os.environ[name]


@deed
def lower_the_recursion_limit() -> None:
    sys.setrecursionlimit(60)


@deed
def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


@deed
def raise_system_exit() -> None:
    sys.exit(4)


@deed
def end_the_thread() -> None:
    _thread.exit()


# -- the database ------------------------------------------------------------------------------------------


@deed
def leave_a_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1")


@deed
def terminate_its_session() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


# -- descriptors -------------------------------------------------------------------------------------------


@deed
def close_descriptors() -> None:
    os.closerange(3, 4096)


@deed
def close_the_streams() -> None:
    for number in (1, 2):
        os.close(number)


@deed
def break_the_streams() -> None:
    sys.stdout = sys.stderr = Broken()  # type: ignore[assignment]


@deed
def use_up_descriptors() -> None:
    """For a while: they are given back when the job has failed."""
    opened = []
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.dup(0))
    try:
        socket.socketpair()
    finally:
        for number in opened:
            os.close(number)
