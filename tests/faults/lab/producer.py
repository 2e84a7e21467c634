"""A process that enqueues a steady load. Its arguments: provider, ledger, jobs each second, plain jobs each second.

What was enqueued is on the ledger once the server has confirmed it. While the server is away, nothing is made up for.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from typing import Any

import django
from django.db import Error, connection

from .ledger import note_all

TICK_SECONDS = 0.1


def main(url: str, ledger: str, each_second: float, plain_each_second: float) -> None:
    django.setup()
    # Importable once Django is set up.
    from tests.testapp import lab_tasks as tasks  # noqa: PLC0415

    policies = itertools.cycle(getattr(tasks, name) for name in tasks.POLICIES)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *args: stopped.append(1))
    owed = plain_owed = 0.0
    tick = time.monotonic()
    while not stopped:
        owed += each_second * TICK_SECONDS
        plain_owed += plain_each_second * TICK_SECONDS
        calls = [next(policies).bind(url, ledger) for _ in range(int(owed))]
        calls += [tasks.plain.bind(ledger) for _ in range(int(plain_owed))]
        owed, plain_owed = owed % 1, plain_owed % 1
        enqueue(ledger, calls)
        tick = max(tick + TICK_SECONDS, time.monotonic() - TICK_SECONDS)
        time.sleep(max(tick - time.monotonic(), 0))


def enqueue(ledger: str, calls: list[Any]) -> None:
    from pgqueue import enqueue_many  # noqa: PLC0415

    try:
        ids = enqueue_many(calls)
    except Error as error:
        print(f"not enqueued: {type(error).__name__}: {error}", file=sys.stderr)
        connection.close()
        return
    note_all(ledger, "enqueued", [{"job": int(job)} for job in ids])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
