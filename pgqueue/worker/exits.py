"""The exit statuses of `runworker`, and what each says."""

from __future__ import annotations

import signal
from enum import IntEnum


class Exit(IntEnum):
    """Where the number has a meaning in sysexits.h, it is that one."""

    DONE = 0
    FORCED = 1
    RELOAD = 3
    """As in Django's own reloader. Nobody sees it: the process starts its program again."""
    IDLE = 4
    """A quarantine found nothing that it could run. Nobody sees it but the worker that started it."""
    NO_START = 69
    CHILDREN_DIE = 70
    UNFIT = 75
    STUCK = 76
    MEMORY = 79


MEANINGS = {
    Exit.DONE: "drained after a signal, --burst found nothing more, or --max-jobs are done",
    Exit.FORCED: "a second signal, or an error that is told, such as wrong options",
    Exit.NO_START: "no worker could start: the database cannot be reached or refuses; the last line says why",
    Exit.CHILDREN_DIE: "with --processes: the processes die soon after their start, again and again",
    Exit.UNFIT: "it could not work any more: its leases ran out, or it was without what it needs; start it again",
    Exit.STUCK: "a job went on past its limit and could not be stopped but with its process; start it again",
    Exit.MEMORY: "drained because of --max-memory-mb; start it again",
}


def told(code: int) -> str:
    """Return what a log line tells of the end of a process; negative codes are signals."""
    if code < 0:
        return f"signal={signal_name(-code)}"
    reason = {int(one): one.name.lower() for one in Exit}.get(code, "unknown")
    return f"status={code} reason={reason}"


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none."""
    return {int(one): one.name for one in signal.Signals}.get(number, str(number))
