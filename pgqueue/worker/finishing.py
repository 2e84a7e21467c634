"""Tell the world that jobs have ended for good, after their endings were written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from .. import registry, signalling
from ..foreign import OF_PROJECT, told
from ..logs import get_logger
from ..protocol.claiming import Lease
from ..protocol.listening import wake
from ..protocol.reading import read_job
from ..protocol.settling import Ending, EndingKind, Written
from ..protocol.taking_over import Taken
from ..results import finished, stored
from ..states import FINAL, State
from .executor import Work
from .tally import Tally

logger = get_logger(__name__)

FIRST_CLAIM = 2
"""Version of a job that was enqueued, then claimed; every other event makes it larger."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A lease, how it ended, and what the database made of it."""

    lease: Lease
    ending: Ending
    written: Written

    def is_whole_story(self) -> bool:
        """Say whether nothing befell the job before this claim, and nobody but the task ended it."""
        if self.lease.version != FIRST_CLAIM:
            return False
        if self.written.state is State.SUCCEEDED:
            return self.ending.kind is EndingKind.COMPLETE
        # A completion that the database refused is dead for another reason than the run tells.
        return self.written.state is State.DEAD and self.ending.failure is not None


class Aftermath:
    """What is done for endings once they are written: they are counted, and told to whom listens.

    Put off until the server is busy with the next ones, or nothing else is to be done.
    """

    def __init__(self, tally: Tally, *, submit: Callable[[list[Work]], None], alias: str) -> None:
        self._tally = tally
        self._submit = submit
        self._alias = alias
        self._due: list[tuple[Sequence[tuple[Lease, Ending]], Mapping[int, Written]]] = []

    def add(self, ended: Sequence[tuple[Lease, Ending]], written: Mapping[int, Written]) -> None:
        """Put off what is to be done for leases that ended; `written` is by job id."""
        if ended:
            self._due.append((ended, written))

    def catch_up(self) -> None:
        """Do what was put off."""
        due, self._due = self._due, []
        for ended, written in due:
            self._tally.note(ended, written)
            notice = notice_of(ended, written, alias=self._alias)
            if notice is not None:
                self._submit([notice])

    def add_taken(self, taken: Sequence[Taken]) -> None:
        """Count and tell jobs taken over."""
        self._tally.note_taken(taken)
        notice = notice_of_losses(taken, alias=self._alias)
        if notice is not None:
            self._submit([notice])

    def outcomes(self) -> Mapping[str, int]:
        """Return how many attempts ended in each state."""
        return self._tally.outcomes()


def leave_to_others(
    connection: psycopg.Connection[Any], ended: Iterable[tuple[Lease, Ending]], *, is_draining: bool
) -> None:
    """Wake others for what this process will not run: they may sleep for long, and must look for it."""
    kinds = (EndingKind.RELEASE, EndingKind.RETRY) if is_draining else (EndingKind.RELEASE,)
    if queues := sorted({lease.queue for lease, ending in ended if ending.kind in kinds}):
        wake(connection, queues)


def notice_of(
    ended: Iterable[tuple[Lease, Ending]], written: Mapping[int, Written], *, alias: str
) -> Callable[[], None] | None:
    """Return what to run on a thread to send `task_finished` for each; None when there is nothing to say.

    `written` is by job id; an ending that is not there tells nothing.
    """
    states = {state for state in FINAL if signalling.finish_is_heard(state)}
    heard = [
        Finished(lease, ending, one)
        for lease, ending in ended
        if (one := written.get(lease.id)) is not None and one.state in states
    ]
    if not heard:
        return None

    def send() -> None:
        for one in heard:
            _send_safely(one, alias)

    return send


def notice_of_losses(taken: Sequence[Taken], *, alias: str) -> Callable[[], None] | None:
    """Return what to run on a thread to send `task_finished` for each job that a takeover ended; None for none."""
    ended = [one for one in taken if one.verdict.target in FINAL]
    if not ended:
        return None

    def send() -> None:
        for one in ended:
            is_decided = one.verdict.target == State.CANCELLED
            signalling.tell_end(alias, job_id=one.job.id, task=one.job.task, is_decided=is_decided)

    return send


def _send_safely(one: Finished, alias: str) -> None:
    """One that cannot be told, say because its task is registered no more, keeps no other from being told."""
    try:
        _send(one, alias)
    except OF_PROJECT as error:
        logger.error("notice.failed job=%d task=%s %s", one.lease.id, one.lease.task, told(error))


def _send(one: Finished, alias: str) -> None:
    task = registry.find(one.lease.task)
    found = None if one.is_whole_story() else read_job(alias, one.lease.id)
    result = finished(task, one.lease, one.ending, one.written) if found is None else stored(task, *found)
    is_decided = one.written.state is State.CANCELLED
    signalling.send_finished(type(task.get_backend()), result, error=one.ending.error, is_decided=is_decided)
