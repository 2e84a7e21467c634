"""What the demo prints: short lines with the time since its start."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TextIO

from demo_project.ledger import Entry, Verdict

STATES = ("pending", "retrying", "running", "unknown", "paused", "succeeded", "dead", "cancelled")
QUIET_SECONDS = 5
"""Between two progress lines where they cannot be written over each other."""
SHOWN = 10
"""Of a long list."""


class Console:
    """Prints finished lines, and below them one line that changes where the output is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._live_at = -math.inf
        self._live = ""

    def say(self, text: str) -> None:
        self._clear()
        for line in text.splitlines():
            self._print(f"{self._clock()} {line}\n")

    def progress(self, text: str) -> None:
        elapsed = time.monotonic() - self._started
        if self._stream.isatty():
            self._clear()
            self._live = f"{self._clock()} {text}"[: shutil.get_terminal_size().columns - 1]
            self._print(self._live)
        elif elapsed - self._live_at >= QUIET_SECONDS:
            self._live_at = elapsed
            self.say(text)

    def _clear(self) -> None:
        if self._live:
            self._print("\r" + " " * len(self._live) + "\r")
            self._live = ""

    def _print(self, text: str) -> None:
        """Print, unless nobody listens any more: a closed terminal must not keep the demo from cleaning up."""
        with contextlib.suppress(OSError):
            print(text, end="", file=self._stream, flush=True)

    def _clock(self) -> str:
        return f"[{time.monotonic() - self._started:6.1f} s]"


def describe(states: Counter[str]) -> str:
    return " · ".join(f"{states[state]} {state}" for state in STATES if states[state])


def describe_kill(kill: Entry, worker: str) -> str:
    return (
        f"the provider killed {worker} (pid {kill['pid']}) with {kill['signal']}"
        f" {kill['moment']} sending the SMS of request {kill['number']}"
    )


def summarise(
    verdict: Verdict,
    *,
    recipients: int,
    coupons: int,
    taken_over: list[int],
    unsuccessful: list[tuple[int, str, str]],
) -> Iterator[str]:
    """Yield the lines of the summary, the verdict last."""
    events = verdict.events
    yield f"coupons     {coupons} issued for {recipients} recipients"
    yield f"messages    {events['effect']} sent, as the provider's ledger has it"
    yield (
        f"requests    {events['request']}: {events['effect']} sent, {events['duplicate']} duplicates absorbed"
        f", {events['throttled']} throttled, {events['failed']} failed, {events['refused']} refused"
    )
    yield f"hung up     {events['dropped']} times by the provider, after the message was sent"
    for kill in verdict.kills:
        yield f"killed      pid {kill['pid']} by {kill['signal']} at request {kill['number']}"
    yield f"taken over  {len(taken_over)} jobs: {_shortened(str(job_id) for job_id in taken_over)}"
    if unsuccessful:
        jobs = (f"{job_id} {state} {error}".rstrip() for job_id, state, error in unsuccessful)
        yield f"not done    {len(unsuccessful)} jobs: {_shortened(jobs)}"
    if verdict.agrees:
        yield "THE LEDGER AGREES: one coupon and one message for every recipient"
        return
    yield f"THE LEDGER DIFFERS for {len(verdict.differing)} recipients:"
    for user_id, difference in sorted(verdict.differing.items()):
        yield f"  recipient {user_id}: {difference}"


def _shortened(items: Iterable[str]) -> str:
    listed = list(items)
    if not listed:
        return "none"
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
