"""What a task that takes a context is given."""

from __future__ import annotations

from .compat import TaskContext, TaskResult
from .exceptions import JobStoppedError, JobTimeoutError
from .holding import Held


class JobContext(TaskContext):
    """A Django TaskContext that knows its lease."""

    __slots__ = ("_held",)

    _held: Held

    def __init__(self, held: Held, task_result: TaskResult) -> None:
        super().__init__(task_result=task_result)
        object.__setattr__(self, "_held", held)

    @property
    def job_id(self) -> int:
        """Id of the job."""
        return self._held.lease.id

    @property
    def attempt(self) -> int:
        """Number of this attempt: 1 for the first; a lost lease does not count."""
        return self._held.lease.attempts + 1

    @property
    def fence(self) -> int:
        """Fencing token of this claim: larger than any given before, to any job of this database."""
        return self._held.lease.fence

    @property
    def operation_key(self) -> str:
        """Key of the business operation, the same on every attempt."""
        return self._held.lease.operation_key or f"job:{self._held.lease.id}"

    @property
    def lease_lost(self) -> bool:
        """Whether the lease is lost or may have run out: nothing that this run still does will be recorded."""
        return self._held.may_be_lost()

    @property
    def stop_requested(self) -> bool:
        """Whether this run should end now: an operator asked for it, or it has passed its limit.

        After a request, which is heard within one heartbeat, any exception ends the job as cancelled. An async task
        need not look: it is cancelled.
        """
        return self._held.stop_requested or self._held.timed_out

    def raise_if_stopped(self) -> None:
        """Raise `JobStoppedError` or `JobTimeoutError` when this run should end now."""
        if self._held.stop_requested:
            raise JobStoppedError(self.job_id)
        if self._held.timed_out:
            raise JobTimeoutError(self.job_id, self._held.limit_seconds())
