"""The provider's ledger, and the check of a campaign against it.

One JSON object a line, appended and never changed. `event` is one of

- `request`: a request came in (number, key, nth under that key, worker_pid, fence, to)
- `effect`: the message went out, or the money (number, key, message_id, to, text)
- `duplicate`: the key was known, so nothing went out; answered with the first message_id
- `throttled`, `failed`, `dropped`, `lost`, `refused`: how a request was answered, when not with success
- `asked`: somebody looked a key up (key, found: the message_id or null)
- `kill`, `kill_failed`: the provider signalled the worker that sent the request (pid, signal, moment)
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class Ledger:
    """Append-only writer. Each line is one unbuffered write, so it survives the death of its process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, entry: Entry) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        os.write(self._file, json.dumps({"at": at, **entry}).encode() + b"\n")


def read(path: Path) -> list[Entry]:
    """Return the entries in the order in which they happened; none when there is no file yet."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    # What follows the last newline is a line still being written, or nothing.
    return [json.loads(line) for line in lines[:-1]]


@dataclass(frozen=True)
class CouponRow:
    """A coupon as the shop's database has it."""

    user_id: int
    message_id: str | None


@dataclass(frozen=True)
class Verdict:
    """What the ledger says about one campaign; `differing` is empty when both sides agree."""

    events: Counter[str]
    kills: list[Entry]
    differing: dict[int, str]

    @property
    def agrees(self) -> bool:
        return not self.differing


def check(
    entries: Iterable[Entry],
    *,
    key_prefix: str,
    phones: Mapping[int, str],
    coupons: Iterable[CouponRow],
) -> Verdict:
    """Compare the shop's coupons with what the provider did under keys that start with `key_prefix`.

    `phones` maps each recipient's user_id to a number of their own. Effects are counted by the number
    that got the message and not by the key: a person who got two messages under two keys got two messages.
    """
    entries = list(entries)
    ours = [entry for entry in entries if str(entry.get("key")).startswith(key_prefix)]
    messages = defaultdict(list)
    for entry in ours:
        if entry["event"] == "effect":
            messages[entry["to"]].append(entry["message_id"])
    issued = defaultdict(list)
    for coupon in coupons:
        issued[coupon.user_id].append(coupon.message_id)

    differing = {
        user_id: difference
        for user_id, phone in phones.items()
        if (difference := _difference(issued[user_id], messages[phone]))
    }
    differing |= dict.fromkeys(issued.keys() - phones.keys(), "has a coupon but is no recipient")
    return Verdict(
        events=Counter(entry["event"] for entry in ours),
        kills=[entry for entry in entries if entry["event"] == "kill"],
        differing=differing,
    )


def _difference(issued: list[str | None], sent: list[str]) -> str:
    """Say how one recipient's coupons and messages differ from one each; empty when they do not."""
    if len(issued) != 1:
        return f"{len(issued)} coupons instead of 1"
    if len(sent) != 1:
        return f"{len(sent)} messages instead of 1: {', '.join(sent) or 'none'}"
    if issued != sent:
        return f"the coupon names message {issued[0]}, the provider sent {sent[0]}"
    return ""


@dataclass(frozen=True)
class PayoutRow:
    """A payout or a credit as the shop's database has it, with its job."""

    job_id: int
    user_id: int
    task: str
    recovery: str
    state: str
    payment_id: str | None
    credits: int


def check_payouts(
    entries: Iterable[Entry],
    *,
    key_prefix: str,
    accounts: Mapping[int, str],
    by_hand: Collection[int],
    payouts: Iterable[PayoutRow],
) -> dict[int, str]:
    """Return by user_id what is wrong with a payout: nothing paid twice, nothing missing, and who waits for a person.

    `accounts` maps each user_id to an account of their own. `by_hand` are those whose outcome only a person can find
    out: their jobs must wait, not paid as far as the shop knows; everybody else's must be done.
    """
    paid = defaultdict(list)
    for entry in entries:
        if entry["event"] == "effect" and entry["key"].startswith(key_prefix):
            paid[entry["to"]].append(entry["message_id"])
    rows = {row.user_id: row for row in payouts}
    differing = {
        user_id: difference
        for user_id, account in accounts.items()
        if (difference := _wrong(rows.get(user_id), paid[account], waits=user_id in by_hand))
    }
    return differing | dict.fromkeys(rows.keys() - accounts.keys(), "has a payout and is not on the list")


def _wrong(row: PayoutRow | None, paid: list[str], *, waits: bool) -> str:
    if row is None:
        return "has no payout"
    if row.state != ("unknown" if waits else "succeeded"):
        return f"job {row.job_id} is {row.state}"
    if row.recovery == "transactional":
        return "" if row.credits == 1 else f"{row.credits} credits instead of 1"
    if len(paid) > 1 or not (paid or waits):
        return f"{len(paid)} payments instead of 1: {', '.join(paid) or 'none'}"
    known = [] if row.payment_id is None else [row.payment_id]
    expected = [] if waits else paid
    return "" if known == expected else f"the shop knows of payment {row.payment_id}, the provider of {', '.join(paid)}"
