"""Tell the world that jobs have ended for good, after their endings were written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import registry, signalling
from ..protocol.claiming import Lease
from ..protocol.connecting import job_alias
from ..protocol.reading import read_job
from ..protocol.settling import Ending, Written
from ..results import finished, stored
from ..states import FINAL, State


@dataclass(frozen=True, slots=True)
class Finished:
    """A lease, how it ended, and what the database made of it."""

    lease: Lease
    ending: Ending
    written: Written

    def is_heard(self) -> bool:
        """Say whether the job is over and somebody wants to know."""
        state = self.written.state
        return state in FINAL and signalling.finish_is_heard(succeeded=state is State.SUCCEEDED)


def notice_of(ended: Sequence[Finished]) -> Callable[[], None] | None:
    """Return what to run on a thread to send `task_finished` for each; None when there is nothing to say."""
    heard = [one for one in ended if one.is_heard()]
    if not heard:
        return None

    def send() -> None:
        for one in heard:
            _send(one)

    return send


def _send(one: Finished) -> None:
    task = registry.find(one.lease.task)
    result = finished(task, one.lease, one.ending, one.written)
    if one.lease.attempts or one.lease.lease_losses:
        found = read_job(job_alias(), one.lease.id)
        result = result if found is None else stored(task, *found)
    signalling.send_finished(type(task.get_backend()), result)
