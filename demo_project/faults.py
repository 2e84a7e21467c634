"""What the simulated provider does wrong, and when: seeded, so that a run can be repeated."""

from __future__ import annotations

import enum
import random
import signal
from dataclasses import dataclass
from typing import Literal


class Fault(enum.Enum):
    """What one request suffers."""

    NONE = "none"
    THROTTLE = "throttle"
    """429 with Retry-After; nothing is sent."""
    ERROR = "error"
    """503; nothing is sent."""
    DROP = "drop"
    """It is done, then the connection is closed without an answer."""
    LOSE = "lose"
    """The connection is closed without an answer; nothing is done."""
    KILL = "kill"
    """It is done, then the worker that asked is killed."""


TEST_ACCOUNTS = {"hangs-up": Fault.DROP, "loses": Fault.LOSE, "kills": Fault.KILL}
"""What the end of an account's name, after a dot, says of the first request under each key; others meet no fault."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Everything the control endpoint and the command line can set. Rates are shares of 1."""

    seed: int = 1
    latency_seconds: float = 0.0
    throttle_rate: float = 0.0
    retry_after_seconds: int = 1
    error_rate: float = 0.0
    drop_rate: float = 0.0
    idempotency: bool = True
    fence_check: bool = False
    kill_on_request: int | None = None
    """The request, or the first one after it, that names its worker and has a key with `kill_key_prefix`."""
    kill_key_prefix: str = ""
    kill_moment: Literal["before", "after"] = "after"
    kill_signal: Literal["SIGKILL", "SIGSTOP"] = "SIGKILL"

    def __post_init__(self) -> None:
        rates = (self.throttle_rate, self.error_rate, self.drop_rate)
        if min(rates) < 0 or sum(rates) > 1:
            raise ValueError(f"fault rates must not be negative and not exceed 1 together: {rates}")
        if self.latency_seconds < 0 or self.retry_after_seconds < 0:
            raise ValueError("latency_seconds and retry_after_seconds must not be negative")
        if self.kill_moment not in ("before", "after"):
            raise ValueError(f"kill_moment must be before or after, not {self.kill_moment!r}")
        if self.kill_signal not in ("SIGKILL", "SIGSTOP"):
            raise ValueError(f"kill_signal must be SIGKILL or SIGSTOP, not {self.kill_signal!r}")

    @property
    def signal_number(self) -> signal.Signals:
        return signal.Signals[self.kill_signal]


def draw(faults: Faults, key: str, nth: int) -> tuple[Fault, float]:
    """Decide the fault and the latency in seconds of the `nth` request under `key`.

    Drawn from the key and not from the order of arrival, which differs from run to run: with the same
    seed the same request meets the same fault, however many workers there are.
    """
    source = random.Random(f"{faults.seed}:{key}:{nth}")
    latency_seconds = faults.latency_seconds * source.uniform(0.5, 1.5)
    return _pick(faults, source.random()), latency_seconds


def told(account: str, nth: int) -> Fault:
    """Return the fault of the `nth` request under its key, as the account asks for it."""
    return TEST_ACCOUNTS.get(account.rpartition(".")[2], Fault.NONE) if nth == 1 else Fault.NONE


def _pick(faults: Faults, share: float) -> Fault:
    if share < faults.throttle_rate:
        return Fault.THROTTLE
    if share < faults.throttle_rate + faults.error_rate:
        return Fault.ERROR
    if share < faults.throttle_rate + faults.error_rate + faults.drop_rate:
        return Fault.DROP
    return Fault.NONE
