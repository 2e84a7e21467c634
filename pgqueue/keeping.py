"""Keep what a call came to until the database takes it: on its effect while the job is ours, else as evidence."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from .backoff import delay_seconds
from .exceptions import LeaseLostError
from .foreign import told
from .logs import get_logger
from .payloads import decode
from .protocol.claiming import Lease
from .protocol.deciding import keep_evidence
from .protocol.effects import record_effect
from .protocol.lending import lender

logger = get_logger(__name__)

RETRY_BASE_SECONDS = 0.2
RETRY_CAP_SECONDS = 5.0
LONGEST_SECONDS = 3600.0
"""How long an answer is kept in memory. Its job is taken over long before, and has an attempt to keep it on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came to; `result` is JSON text, None for None."""

    alias: str
    lease: Lease
    effect: str
    key: str
    result: str | None
    reference: str | None
    came_at: float
    """In monotonic seconds."""


class Keeper:
    """Writes answers down that could not be recorded when they came; a thread tries again while there are any."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_empty = threading.Event()
        self._is_empty.set()
        self._hurry = threading.Event()

    def keep(self, answer: Answer) -> None:
        """Write an answer down now, or as soon as the database takes it. Its key is logged at once."""
        facts = (answer.lease.id, answer.lease.fence, answer.effect, answer.key)
        logger.warning("effect.late job=%d fence=%d effect=%s key=%s", *facts)
        if _is_stored(answer):
            return
        with self._lock:
            self._answers.append(answer)
            self._is_empty.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pgqueue-keeper", daemon=True)
                self._thread.start()

    def flush(self, *, timeout_seconds: float) -> None:
        """Try again at once, and wait until all is written down, at most so long; tell what is not."""
        self._hurry.set()
        if not self._is_empty.wait(timeout_seconds):
            with self._lock:
                for answer in self._answers:
                    _tell_loss(answer)

    def _run(self) -> None:
        tries = 0
        while True:
            tries += 1
            if self._hurry.wait(delay_seconds(tries, base_seconds=RETRY_BASE_SECONDS, cap_seconds=RETRY_CAP_SECONDS)):
                time.sleep(RETRY_BASE_SECONDS)
            with self._lock:
                answers = list(self._answers)
            done = [answer for answer in answers if _is_over(answer)]
            with self._lock:
                self._answers = [answer for answer in self._answers if answer not in done]
                if not self._answers:
                    self._thread = None
                    self._is_empty.set()
                    return


def _is_over(answer: Answer) -> bool:
    if _is_stored(answer):
        return True
    if time.monotonic() - answer.came_at < LONGEST_SECONDS:
        return False
    _tell_loss(answer)
    return True


def _is_stored(answer: Answer) -> bool:
    try:
        with lender.lend(answer.alias) as connection:
            return store(connection, answer)
    except Exception as error:  # Whatever it was: without its thread, no answer would be kept any more.
        logger.debug("effect.unwritten job=%d effect=%s %s", answer.lease.id, answer.effect, told(error))
        return False


def store(connection: psycopg.Connection[Any], answer: Answer) -> bool:
    """Store an answer; return whether there was a place for it: a lost job has one once it was taken over.

    While the job is ours the effect is simply recorded: the lease need not be valid for that. Raise `psycopg.Error`.
    """
    lease = answer.lease
    try:
        record_effect(connection, lease, answer.effect, result=answer.result, remote_reference=answer.reference)
    except LeaseLostError:
        said = {"effect": answer.effect, "remote_reference": answer.reference, "result": decode(answer.result)}
        return keep_evidence(connection, id=lease.id, fence=lease.fence, worker_id=lease.worker_id, evidence=said)
    return True


def _tell_loss(answer: Answer) -> None:
    lease = answer.lease
    facts = (lease.id, lease.fence, answer.effect, answer.key)
    logger.error("effect.evidence_lost job=%d fence=%d effect=%s key=%s", *facts)


keeper = Keeper()
