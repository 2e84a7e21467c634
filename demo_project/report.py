"""What the demo prints: short lines with the time since its start."""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TextIO

from demo_project.ledger import Entry, PayoutRow, Verdict

STATES = ("pending", "retrying", "running", "probing", "unknown", "paused", "succeeded", "dead", "cancelled")
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


def describe_kill(kill: Entry) -> str:
    return (
        f"the provider killed the worker of pid {kill['pid']} with {kill['signal']}"
        f" {kill['moment']} it did what request {kill['number']} asked for: {kill['key']}"
    )


def describe_payouts(payouts: Iterable[PayoutRow], entries: Iterable[Entry], *, key_prefix: str) -> Iterator[str]:
    """Yield a line for each task that pays: what went wrong, how it recovered, what waits."""
    by_task: dict[str, list[PayoutRow]] = {}
    for row in payouts:
        by_task.setdefault(row.task, []).append(row)
    ours = [entry for entry in entries if str(entry["key"]).startswith(key_prefix)]
    for task, rows in by_task.items():
        users = {str(row.user_id) for row in rows}
        events = Counter(entry["event"] for entry in ours if entry["key"].split(":")[2] in users)
        done = sum(row.state == "succeeded" for row in rows)
        faults = ", ".join(f"{events[name]} {words}" for name, words in MET.items() if events[name])
        how = RECOVERED[rows[0].recovery].format(**{name: events[name] for name in ("request", "duplicate", "asked")})
        yield f"  {task:12} {rows[0].recovery:13} {done} of {len(rows)} done · {faults}: {how}"


MET = {"kill": "killed in the middle", "dropped": "paid and hung up on", "lost": "hung up on and not paid"}
RECOVERED = {
    "transactional": "rolled back by the server and run again",
    "idempotent": "asked for again under the same key, and answered {duplicate} times from what was done",
    "probe": "the provider was asked {asked} times what became of it",
    "manual": "left for a person, in the inbox",
}


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
