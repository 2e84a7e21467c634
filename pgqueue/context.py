"""What a task that takes a context is given."""

from __future__ import annotations

from .compat import TaskContext, TaskResult
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
        """Whether an operator asked this job to stop. Any exception then ends it as cancelled."""
        return self._held.stop_requested
