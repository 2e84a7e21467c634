"""What a task that takes a context is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from .compat import TaskContext, TaskResult
from .effects import Effects, Exceptions, Reference
from .exceptions import JobStoppedError, JobTimeoutError
from .holding import Held
from .protocol.connecting import job_alias
from .protocol.locking import lock_keys


class JobContext(TaskContext):
    """A Django TaskContext that knows its lease."""

    __slots__ = ("_effects", "_held")

    _held: Held
    _effects: Effects

    def __init__(self, held: Held, task_result: TaskResult) -> None:
        super().__init__(task_result=task_result)
        object.__setattr__(self, "_held", held)
        object.__setattr__(self, "_effects", Effects(held, operation_key=self.operation_key))

    def __repr__(self) -> str:
        """Leave the arguments out: error trackers show the variables of a task."""
        return f"<JobContext job={self.job_id} attempt={self.attempt} fence={self.fence}>"

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

    def effect(
        self,
        name: str,
        call: Callable[[str], Any],
        *,
        did_not_happen: Exceptions = (),
        reference: Reference | None = None,
    ) -> Any:
        """Call the outside world, at most once per recorded outcome, and return what it answered.

        `call` is given the effect's idempotency key, the same on every attempt. That it begins is committed before
        it; what it returns, a JSON value, is stored after it, and every later attempt gets that without a call.
        `reference` picks the remote system's own name for it out of the value; a text is its own. Exceptions in
        `did_not_happen` prove that nothing has happened: the effect may be called again. Any other leaves its outcome
        unknown, and the task's recovery policy decides what becomes of the job, however the run ends.

        Raise before anything is called: `EffectRefusedError` inside a transaction of the job's database,
        `LeaseLostError` when the job may be somebody else's by now, `OutcomeUnknownError` when an earlier call may
        have happened and must not be repeated. `LeaseLostError` after the call: what it returned is kept as evidence.
        """
        return self._effects.call(name, call, did_not_happen=did_not_happen, reference=reference)

    async def aeffect(
        self,
        name: str,
        call: Callable[[str], Awaitable[Any]],
        *,
        did_not_happen: Exceptions = (),
        reference: Reference | None = None,
    ) -> Any:
        """Do as `effect` does, with a coroutine function."""
        return await self._effects.acall(name, call, did_not_happen=did_not_happen, reference=reference)

    def confirming(self, name: str) -> AbstractContextManager[bool]:
        """Return a block that is one transaction of its writes and of the effect's last stage, `confirmed`.

        Its value says whether that is the first time. If not, an earlier attempt has committed these writes: what the
        block writes then is rolled back. A lost lease rolls it back too, with `LeaseLostError`. Raise
        `OutcomeUnknownError` for an effect without a stored result, `EffectRefusedError` inside another transaction.
        """
        return self._effects.confirming(name)

    def lock(self, *keys: str) -> None:
        """Lock business keys until the transaction that is open on the job's database ends; wait for who holds one.

        Two jobs that lock all their keys in one call never wait for each other. Raise `TransactionManagementError`
        when no transaction is open.
        """
        lock_keys(job_alias(), keys)

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
