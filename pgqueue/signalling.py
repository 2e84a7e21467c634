"""Send the signals of Django Tasks, when somebody listens; a receiver can change nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from django.dispatch import Signal

from . import registry
from .compat import BaseTaskBackend, Task, TaskResult, TaskResultStatus, task_enqueued, task_finished, task_started
from .foreign import OF_PROJECT, told, traceback_of
from .logs import get_logger, is_written
from .protocol.reading import read_job
from .reporting import stand_in
from .results import stored
from .states import State

logger = get_logger(__name__)
_logger = logging.getLogger(Task.__module__.removesuffix(".base"))


class _OwnLine(threading.local, logging.Filter):
    """Makes Django's line an INFO one, without an exception, while this thread tells what somebody decided."""

    is_lowered = False

    @contextmanager
    def lowered(self) -> Iterator[None]:
        self.is_lowered = True
        try:
            yield
        finally:
            self.is_lowered = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not self.is_lowered:
            return True
        record.levelno, record.levelname, record.exc_info = logging.INFO, logging.getLevelName(logging.INFO), None
        return _logger.isEnabledFor(logging.INFO)


_own_line = _OwnLine()
_logger.addFilter(_own_line)
OWN_RECEIVERS = 1
"""Django's own receiver writes a log line; it does not count as listening while nobody would write it."""


def start_is_heard() -> bool:
    """Say whether `task_started` has anyone to tell."""
    return _is_heard(task_started, logging.INFO)


def finish_is_heard(state: State) -> bool:
    """Return whether `task_finished` has anyone to tell of a job in this state.

    For a dead one Django's logger is enough: error trackers hear it without a handler.
    """
    if state is State.DEAD and _logger.isEnabledFor(logging.ERROR):
        return True
    return _is_heard(task_finished, logging.INFO)


def send_enqueued(sender: type[BaseTaskBackend], result: TaskResult) -> None:
    """Say that a task was enqueued, if anyone listens.

    Robust: without a block the job is committed by now, and an exception would say that it is not.
    """
    if _is_heard(task_enqueued, logging.DEBUG):
        _send(task_enqueued, sender, result, survives=(Exception,))


def send_started(sender: type[BaseTaskBackend], result: TaskResult) -> None:
    """Say that a task is about to run."""
    _send(task_started, sender, result)


def send_finished(
    sender: type[BaseTaskBackend],
    result: TaskResult,
    *,
    error: BaseException | None = None,
    is_decided: bool = False,
) -> None:
    """Tell that a job has ended for good. Sent once, after its ending was written.

    Receivers of a failed one find an exception under way, as with Django's own backends: `error`, else a stand-in
    with the stored text. Django's receiver logs it as an error, but not what `is_decided`, by an operator.
    """
    if result.status != TaskResultStatus.FAILED:
        _send(task_finished, sender, result)
        return
    under_way = error or _stand_in(result)
    frames = traceback_of(under_way)
    with _own_line.lowered() if is_decided else nullcontext():
        try:
            raise under_way
        except BaseException as raised:
            # Without this frame: a tracker shows the variables of frames, and the result holds the arguments.
            BaseException.with_traceback(raised, frames)
            _send(task_finished, sender, result)


def _stand_in(result: TaskResult) -> BaseException:
    if not result.errors:
        return stand_in("builtins.Exception", "")
    return stand_in(result.errors[-1].exception_class_path, result.errors[-1].traceback)


def tell_end(alias: str, *, job_id: int, task: str, is_decided: bool) -> None:
    """Send `task_finished` for a job that something else than its own run has ended. Whatever goes wrong is logged."""
    if not finish_is_heard(State.CANCELLED if is_decided else State.DEAD):
        return
    try:
        known = registry.find_or_discover(task)
        found = read_job(alias, job_id)
        if found is not None:
            send_finished(type(known.get_backend()), stored(known, *found), is_decided=is_decided)
    except OF_PROJECT as error:
        logger.error("notice.failed job=%d task=%s %s", job_id, task, told(error))


def _send(
    signal: Signal,
    sender: type[BaseTaskBackend],
    result: TaskResult,
    *,
    survives: tuple[type[BaseException], ...] = OF_PROJECT,
) -> None:
    """Send a signal; whatever its receivers raise changes nothing.

    `send_robust` alone lets SystemExit through, and what a log handler raises when it logs what a receiver raised.
    """
    try:
        signal.send_robust(sender, task_result=result)
    except survives as error:
        logger.error("receiver.failed job=%s task=%s %s", result.id, result.task.module_path, told(error))


def _is_heard(signal: Signal, level: int) -> bool:
    return len(signal.receivers) > OWN_RECEIVERS or is_written(_logger, level)
