"""Calls to the outside world within a run: written down before and after, and never repeated blindly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import psycopg
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from . import registry
from .backoff import delay_seconds, is_told
from .exceptions import EffectRefusedError, JobTimeoutError, LeaseLostError, ResultError
from .foreign import OF_PROJECT, class_name, is_a, text, told
from .holding import Held
from .keeping import Answer, keeper, store
from .logs import get_logger
from .payloads import decode, encode_result
from .protocol.borrowing import borrowed
from .protocol.connecting import job_alias
from .protocol.effects import (
    Call,
    EffectRow,
    confirm_effect,
    open_effect,
    record_effect,
    withdraw_effect,
)
from .protocol.lending import lender
from .server_errors import DATABASE_ERRORS, is_of_the_value
from .states import Recovery, Stage

logger = get_logger(__name__)

T = TypeVar("T")
Exceptions = tuple[type[BaseException], ...]
Reference = Callable[[Any], str | None]

LONGEST_NAME = 100
LONGEST_REFERENCE = 200
RETRY_CAP_SECONDS = 2.0
RECORDING_SECONDS = 600.0
"""How long a run waits for the server to take an answer. Then it fails, and the answer is kept without it."""


class Effects:
    """The effects of one run. Every write is on a connection of the queue's own, and committed when it returns."""

    def __init__(self, held: Held, *, operation_key: str) -> None:
        self._held = held
        self._operation_key = operation_key
        self._alias = job_alias()
        self._begun: set[str] = set()
        # A test's own transaction around the run is none of the task's.
        self._blocks_around = len(connections[self._alias].atomic_blocks)

    def call(
        self, name: str, call: Callable[[str], Any], *, did_not_happen: Exceptions, reference: Reference | None
    ) -> Any:
        """See `JobContext.effect`."""
        key, known = self._open(name)
        if known is not None:
            return decode(known.result)
        try:
            value = call(key)
        except did_not_happen:
            self._withdraw(name)
            raise
        return self._record(name, value, reference)

    async def acall(
        self,
        name: str,
        call: Callable[[str], Awaitable[Any]],
        *,
        did_not_happen: Exceptions,
        reference: Reference | None,
    ) -> Any:
        """See `JobContext.aeffect`."""
        key, known = await sync_to_async(self._open)(name)
        if known is not None:
            return decode(known.result)
        try:
            value = await call(key)
        except did_not_happen:
            await sync_to_async(self._withdraw)(name)
            raise
        # Whoever cancels the run now does not undo what has happened.
        return await asyncio.shield(sync_to_async(self._record)(name, value, reference))

    @contextmanager
    def confirming(self, name: str) -> Iterator[bool]:
        """See `JobContext.confirming`."""
        self._refuse_block(name)
        is_first = self._write(
            name, lambda connection: confirm_effect(connection, self._held.lease, name, Stage.CONFIRMING)
        )
        with transaction.atomic(using=self._alias):
            yield is_first
            if is_first:
                self._confirm(name)
            else:
                transaction.set_rollback(True, using=self._alias)

    def _open(self, name: str) -> tuple[str, EffectRow | None]:
        """Return the idempotency key, and the effect if its result is stored. Else the call is to begin now."""
        self._refuse(name)
        task = registry.get(self._held.lease.task)
        settings = self._held.settings()
        call = Call(
            name=name,
            key=self._key(name),
            call_deadline_seconds=getattr(task, "call_deadline_seconds", None) or settings.call_deadline_seconds,
            replay_safe_seconds=getattr(task, "replay_safe_seconds", None) or settings.replay_safe_seconds,
            has_begun=name in self._begun,
        )
        known = self._write(name, lambda connection: open_effect(connection, self._held.lease, call))
        if known is None:
            # The last look before the bytes leave: the machine may have slept since the lease was confirmed.
            if self._held.may_be_lost():
                raise LeaseLostError(self._held.lease.id, self._held.lease.fence)
            self._begun.add(name)
        self._held.has_effects = True
        return call.key, known

    def _record(self, name: str, value: Any, reference: Reference | None) -> Any:
        """Store what a call came to and return it as every later run gets it.

        It has happened, so a value that cannot be stored or looked at is no reason to doubt that: it is stored as
        None, and the `ResultError` comes after it. So does an interruption that comes meanwhile.
        """
        result, refused = self._encoded(value)
        remote_reference, interruption = self._reference(name, value, reference)
        try:
            self._write(
                name,
                lambda connection: record_effect(
                    connection, self._held.lease, name, result=result, remote_reference=remote_reference
                ),
                within_seconds=RECORDING_SECONDS,
            )
        except BaseException as error:
            # Whatever ended the wait, a time limit too: whoever settles the run must find the answer all the same.
            self._keep(name, result, remote_reference)
            if is_a(error, DATABASE_ERRORS) and not is_a(error, JobTimeoutError) and self._held.may_be_lost():
                raise LeaseLostError(self._held.lease.id, self._held.lease.fence) from error
            raise
        if (later := refused or interruption) is not None:
            raise later
        return decode(result)

    def _encoded(self, value: Any) -> tuple[str | None, ResultError | None]:
        try:
            return encode_result(value, max_bytes=self._held.settings().max_result_bytes), None
        except ResultError as error:
            return None, error
        except OF_PROJECT as error:
            if is_a(error, JobTimeoutError):
                raise
            reason = f"cannot be read: that raised {class_name(error)}"
            return None, ResultError("result", reason, "return plain values: str, numbers, list and dict")

    def _reference(self, name: str, value: Any, reference: Reference | None) -> tuple[str | None, BaseException | None]:
        """Return how the remote system calls what it did, and what interrupted the run meanwhile.

        The author's function must not lose what has happened.
        """
        try:
            named: Any = value if reference is None else reference(value)
            return (_storable(named) if is_a(named, str) else None), None
        except BaseException as error:
            logger.error("effect.no_reference job=%d effect=%s %s", self._held.lease.id, name, told(error))
            is_theirs = is_a(error, OF_PROJECT) and not is_a(error, JobTimeoutError)
            return None, None if is_theirs else error

    def _withdraw(self, name: str) -> None:
        self._begun.discard(name)
        self._write(name, lambda connection: withdraw_effect(connection, self._held.lease, name))

    def _confirm(self, name: str) -> None:
        """Confirm in the author's transaction, as its last act: a lost lease rolls all of it back."""
        wrapper = connections[self._alias]
        with wrapper.wrap_database_errors, borrowed(self._alias) as connection:
            confirm_effect(connection, self._held.lease, name, Stage.CONFIRMED)

    def _keep(self, name: str, result: str | None, reference: str | None) -> None:
        answer = Answer(
            alias=self._alias,
            lease=self._held.lease,
            effect=name,
            key=self._key(name),
            result=result,
            reference=reference,
            came_at=time.monotonic(),
        )
        if self._held.lend is None:
            keeper.keep(answer)
        else:
            # A test's own connection: it is nobody else's, and there is no later.
            with self._held.lend() as connection:
                store(connection, answer)

    def _key(self, name: str) -> str:
        return f"{self._operation_key}:{name}"

    def _refuse(self, name: str) -> None:
        if not (isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()):
            raise ValueError(f"An effect's name is a printable text of 1 to {LONGEST_NAME} characters, not {name!r}.")
        if self._held.lease.recovery == Recovery.TRANSACTIONAL:
            reason = "a transactional task has all its effects in its own database, where they can be rolled back"
            raise EffectRefusedError(self._held.lease.id, name, reason)
        self._refuse_block(name)
        if self._held.may_be_lost():
            raise LeaseLostError(self._held.lease.id, self._held.lease.fence)

    def _refuse_block(self, name: str) -> None:
        wrapper = connections[self._alias]
        is_free = wrapper.autocommit or wrapper.connection is None
        if len(wrapper.atomic_blocks) > self._blocks_around or not (is_free or self._blocks_around):
            reason = (
                f"a transaction is open on database {self._alias!r}, and rolling it back would not undo the call; "
                f"end the block first"
            )
            raise EffectRefusedError(self._held.lease.id, name, reason)

    def _write(
        self, name: str, step: Callable[[psycopg.Connection[Any]], T], *, within_seconds: float | None = None
    ) -> T:
        """Write on a connection of the queue's own, again while the server is at fault and the lease surely ours.

        Each step looks first what is there, so that one whose COMMIT answer was lost finds its own write. The heartbeat
        may renew the lease for ever meanwhile: `within_seconds` bounds the wait, by default the length of a lease.
        """
        failures = 0
        deadline = time.monotonic() + (within_seconds or self._held.settings().lease_seconds)
        while True:
            try:
                with self._lend() as connection:
                    return step(connection)
            except JobTimeoutError:
                raise  # It is an OSError, and was thrown in from outside.
            except DATABASE_ERRORS as error:
                if self._held.lend is not None or self._held.may_be_lost() or is_of_the_value(error):
                    raise
                failures += 1
                if is_told(failures):
                    facts = (self._held.lease.id, name, self._key(name), failures, told(error))
                    logger.warning("effect.unwritten job=%d effect=%s key=%s failures=%d %s", *facts)
                if time.monotonic() > deadline:
                    raise
                time.sleep(delay_seconds(failures, base_seconds=0.1, cap_seconds=RETRY_CAP_SECONDS))

    def _lend(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        return self._held.lend() if self._held.lend is not None else lender.lend(self._alias)


def _storable(name: str) -> str:
    """Return a text that PostgreSQL can hold, whatever the remote system or its client calls things."""
    return text(name).replace("\0", "")[:LONGEST_REFERENCE].encode(errors="replace").decode()
