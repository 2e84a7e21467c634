"""The threads that async jobs use for what must not run on the loop, the ORM above all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from .copies import call_here
from .surroundings import clean_surroundings

T = TypeVar("T")


class JobThread(Executor):
    """One of a bounded number of threads, a job's own from its first call until its end.

    Each has a connection, so that their number bounds what a burst of async jobs takes of the server. While all are
    taken, a job's first call waits for the end of another job.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._service: Future[None] | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call a function on the job's thread, after what it was given before."""
        future: Future[T] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        if self._service is None:
            self._service = self._threads.submit(Context().run, self._serve)
        return future

    async def leave(self) -> None:
        """Give the thread back, once it is clean; nothing is submitted any more."""
        if self._service is not None and not self._service.cancel():
            self._calls.put(None)
            await asyncio.wrap_future(self._service)

    def _serve(self) -> None:
        with clean_surroundings():
            while (item := self._calls.get()) is not None:
                future, call = item
                if future.set_running_or_notify_cancel():
                    _settle(future, call)


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        value = call_here(call)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)
