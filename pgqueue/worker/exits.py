"""The exit statuses of `runworker`, and what each says."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Where the number has a meaning in sysexits.h, it is that one."""

    DONE = 0
    FORCED = 1
    RELOAD = 3
    """As in Django's own reloader. Nobody sees it: the process starts its program again."""
    CHILDREN_DIE = 70
    UNFIT = 75
    STUCK = 76
    MEMORY = 79


MEANINGS = {
    Exit.DONE: "drained after a signal, --burst found nothing more, or --max-jobs are done",
    Exit.FORCED: "a second signal, or an error that is told: wrong options, no database at the start",
    Exit.CHILDREN_DIE: "with --processes: the processes die soon after their start, again and again",
    Exit.UNFIT: "it could not work any more: its leases ran out, or it was without what it needs; start it again",
    Exit.STUCK: "a job went on past its limit and could not be stopped but with its process; start it again",
    Exit.MEMORY: "drained because of --max-memory-mb; start it again",
}
