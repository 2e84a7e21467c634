"""What the simulated provider decides, does and remembers; `provider` puts it behind HTTP."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from demo_project.faults import Fault, Faults, draw, told
from demo_project.ledger import Entry, Ledger, read

PHONE = re.compile(r"\+[0-9]{7,15}")
ACCOUNT = re.compile(r"acct-[a-z0-9.-]+")
CENTS = re.compile(r"[1-9][0-9]{0,8}")
Kind = Literal["message", "payment", "check"]


@dataclass(frozen=True)
class Request:
    """One request as it came in: a message's number and text, a payment's account and cents, an account to check."""

    to: str
    text: str
    key: str
    fence: int | None
    worker_pid: int | None
    kind: Kind = "message"

    @property
    def is_acceptable(self) -> bool:
        if self.kind == "message":
            return bool(PHONE.fullmatch(self.to) and self.text)
        return bool(ACCOUNT.fullmatch(self.to) and (self.kind == "check" or CENTS.fullmatch(self.text)))

    @property
    def digest(self) -> str:
        return _digest(self.to, self.text)


@dataclass(frozen=True)
class Turn:
    """A received request with what has been decided about it."""

    request: Request
    number: int
    faults: Faults
    fault: Fault
    latency_seconds: float
    victim: int | None
    """The pid to signal, None for nearly every request."""


@dataclass(frozen=True)
class Reply:
    status: int
    body: dict[str, Any]
    retry_after_seconds: int | None = None


class Provider:
    """The provider's state. One lock: what is decided and written about a request is one step."""

    def __init__(self, ledger_path: Path, faults: Faults) -> None:
        self._lock = threading.RLock()
        self._faults = faults
        self._requests_by_key: Counter[str] = Counter()
        self._sent_by_key: dict[str, tuple[str, str]] = {}
        self._highest_fence: Counter[str] = Counter()
        self._requests = 0
        self._effects = 0
        for entry in read(ledger_path):
            self._remember(entry)
        self._ledger = Ledger(ledger_path)

    def answer(self, request: Request) -> Reply | None:
        """Handle one request; None means: close the connection without an answer."""
        turn = self._receive(request)
        time.sleep(turn.latency_seconds)
        if turn.fault is Fault.LOSE:
            self._record(turn, "lost")
            return None
        if turn.victim and turn.faults.kill_moment == "before":
            self._kill(turn, turn.victim)
            return None
        reply = self._refuse(turn) or self._send(turn)
        if turn.victim:
            self._kill(turn, turn.victim)
        if turn.fault is Fault.DROP and reply.status < 300:
            self._record(turn, "dropped")
            return None
        return reply

    def look_up(self, key: str) -> Reply:
        """Say what was done under a key, first."""
        with self._lock:
            known = self._sent_by_key.get(key)
            self._write({"event": "asked", "key": key, "found": known and known[0]})
        return Reply(404, {"error": "no such key"}) if known is None else Reply(200, {"id": known[0]})

    def control(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Change the faults that `changes` names and return the state.

        Raises ValueError or TypeError for a name or a value that does not exist.
        """
        unknown = changes.keys() - {field.name for field in fields(Faults)}
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        with self._lock:
            self._faults = replace(self._faults, **changes)
            counts = {"requests": self._requests, "effects": self._effects}
            return {"pid": os.getpid(), **counts, **asdict(self._faults)}

    def _receive(self, request: Request) -> Turn:
        with self._lock:
            faults = self._faults
            number, nth = self._requests + 1, self._requests_by_key[request.key] + 1
            facts = {"nth": nth, "worker_pid": request.worker_pid, "fence": request.fence, "to": request.to}
            self._write({"event": "request", "number": number, "key": request.key, **facts})
            victim = request.worker_pid if _is_fatal(faults, number, request) else None
            if victim:
                self._faults = replace(faults, kill_on_request=None)
        fault, latency_seconds = draw(faults, request.key or str(number), nth)
        if request.kind != "message":
            fault = told(request.to, nth)
            victim = request.worker_pid if fault is Fault.KILL else None
        # The request that gets its worker killed meets no other fault: "after" is after the message went out.
        return Turn(request, number, faults, fault if victim is None else Fault.NONE, latency_seconds, victim)

    def _refuse(self, turn: Turn) -> Reply | None:
        """Answer a request for which nothing is done, if this is one."""
        request = turn.request
        if turn.fault is Fault.THROTTLE:
            self._record(turn, "throttled")
            return Reply(429, {"error": "too many requests"}, turn.faults.retry_after_seconds)
        if turn.fault is Fault.ERROR:
            self._record(turn, "failed")
            return Reply(503, {"error": "out of order"})
        if not request.is_acceptable:
            return self._refused(turn, 422, NEEDED[request.kind])
        return Reply(200, {"open": True}) if request.kind == "check" else None

    def _send(self, turn: Turn) -> Reply:
        """Send the message or pay, unless the fence is stale or the key is known; check and effect are one step."""
        request = turn.request
        with self._lock:
            if turn.faults.fence_check and self._is_stale(request):
                return self._refused(turn, 409, f"fence {request.fence} is lower than one seen before")
            known = self._sent_by_key.get(request.key) if turn.faults.idempotency and request.key else None
            if known is not None:
                return self._repeat(turn, *known)
            message_id = f"{'msg' if request.kind == 'message' else 'pay'}-{self._effects + 1:06d}"
            self._record(turn, "effect", message_id=message_id, to=request.to, text=request.text)
        return Reply(201, {"message_id": message_id})

    def _repeat(self, turn: Turn, message_id: str, digest: str) -> Reply:
        if digest != turn.request.digest:
            return self._refused(turn, 422, "this idempotency key belongs to another request")
        self._record(turn, "duplicate", message_id=message_id)
        return Reply(200, {"message_id": message_id})

    def _is_stale(self, request: Request) -> bool:
        return request.fence is not None and request.fence < self._highest_fence[request.key]

    def _refused(self, turn: Turn, status: int, reason: str) -> Reply:
        self._record(turn, "refused", status=status, reason=reason)
        return Reply(status, {"error": reason})

    def _kill(self, turn: Turn, pid: int) -> None:
        """Signal the worker; written down first, so that no death is seen before the ledger explains it."""
        faults = turn.faults
        self._record(turn, "kill", pid=pid, signal=faults.kill_signal, moment=faults.kill_moment)
        try:
            os.kill(pid, faults.signal_number)
        except OSError as error:
            self._record(turn, "kill_failed", pid=pid, reason=str(error))

    def _record(self, turn: Turn, event: str, **facts: Any) -> None:
        self._write({"event": event, "number": turn.number, "key": turn.request.key, **facts})

    def _write(self, entry: Entry) -> None:
        with self._lock:
            self._ledger.append(entry)
            self._remember(entry)

    def _remember(self, entry: Entry) -> None:
        """Take one ledger entry into the state: while running, and when read back after a restart."""
        key = entry["key"]
        if entry["event"] == "request":
            self._requests += 1
            self._requests_by_key[key] += 1
            self._highest_fence[key] = max(self._highest_fence[key], entry["fence"] or 0)
        elif entry["event"] == "effect":
            self._effects += 1
            # A key answers with its first effect, also after a time without idempotency.
            self._sent_by_key.setdefault(key, (entry["message_id"], _digest(entry["to"], entry["text"])))


NEEDED: dict[Kind, str] = {
    "message": "a message needs a text and a number like +447700900000",
    "payment": "a payment needs cents and an account like acct-1",
    "check": "an account is like acct-1",
}


def _is_fatal(faults: Faults, number: int, request: Request) -> bool:
    reached = faults.kill_on_request is not None and number >= faults.kill_on_request
    return reached and request.kind == "message" and request.key.startswith(faults.kill_key_prefix)


def _digest(to: str, text: str) -> str:
    return hashlib.sha256(f"{to}\n{text}".encode()).hexdigest()
