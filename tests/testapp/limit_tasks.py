"""Tasks that take a moment, or fail at first."""

from __future__ import annotations

import time
from typing import Any

from pgqueue import Retry, task


@task
def nap() -> None:
    time.sleep(0.02)


@task(takes_context=True, key_order="strict")
def fail_now_and_then(context: Any, number: int) -> None:
    if number % 2 and context.attempt == 1:
        raise Retry("not yet", after_seconds=0.01)


@task
def go_on_for_ever() -> None:
    go_on_for_ever.using(priority=9).enqueue()
