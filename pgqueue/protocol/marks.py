"""Where claims go on: behind what was claimed before, which stays in the index, dead, until it is vacuumed away.

Without marks each claim would read over all of it: at 10,000 jobs a second, or while a long transaction holds back
vacuum, that is hundreds of thousands of rows. Marks hide what comes to stand elsewhere: a row whose insert was
committed late, a row given back, the first row of a new group. So one claim in so many goes without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .claiming import Lease

REST_RATIO = 20
"""What reads over all of it is sent again after so many times as long as it took: a twentieth of a worker's time."""
REST_AT_MOST_SECONDS = 10.0
MOST_GROUPS = 100
"""With more groups all claims are whole: each group costs a claim one step in the index either way."""

Group = tuple[str, int, str]
"""Queue, priority and task."""
Mark = tuple[float, int]
"""The instant from which on a job was due, in seconds since 1970, and its id."""
FIRST: Mark = (0.0, 0)


class Marks:
    """The marks of one source of claims. Not for several threads."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: dict[Group, Mark] = {}
        self._whole_from = 0.0
        self._sent_at = 0.0
        self._has_looked = False
        self._was_short = False
        self.are_used = False
        self.goes_first = False
        """Whether the claim is one before the whole one that is due, for a single job."""

    def choose(self, *, wanted: int) -> Mapping[Group, Mark]:
        """Return the marks behind which the claim that is about to be sent goes on; none when a whole one is due."""
        self._sent_at = self._clock()
        is_due = self._sent_at >= self._whole_from
        may_be_used = self._has_looked and 0 < len(self._marks) <= MOST_GROUPS
        self.goes_first = may_be_used and is_due and self._may_go_first(wanted)
        self.are_used = may_be_used and (self.goes_first or not is_due)
        return self._marks if self.are_used else {}

    def answered(self, *, is_short: bool) -> None:
        """Note that the claim sent last has answered, and whether with less than was wanted."""
        self._was_short = is_short
        if not self.are_used:
            now = self._clock()
            self._whole_from = now + rest_seconds(now - self._sent_at)

    def _may_go_first(self, wanted: int) -> bool:
        """Say whether one job may be claimed behind the only mark first: that takes less time.

        Only where the claim before left nothing waiting, so that what came since is mostly behind the mark of what was
        claimed last; and where the whole claim after it has room for whatever should have been before that job.
        """
        return wanted > 1 and self._was_short and not self.goes_first and self._is_of_one_group()

    def _is_of_one_group(self) -> bool:
        """Say whether there is one mark, of a group that something was claimed from: a look sees others' groups too."""
        return len(self._marks) == 1 and FIRST not in self._marks.values()

    def know(self, groups: Iterable[Group]) -> None:
        """Take in the groups that a look has seen: of those claimed from, as many as may be marked stay beside them.

        Before the first look all claims are whole: a mark would hide every group that nothing was claimed from.
        """
        self._has_looked = True
        seen = {group: self._marks.pop(group, FIRST) for group in groups}
        others = list(self._marks.items())[-(MOST_GROUPS - len(seen)) :] if len(seen) < MOST_GROUPS else []
        self._marks = {**dict(others), **seen}

    def note(self, leases: Iterable[Lease]) -> None:
        """Set marks behind leases, given in the order of their claim. None goes back."""
        for group, lease in {(lease.queue, lease.priority, lease.task): lease for lease in leases}.items():
            self._marks[group] = max(self._marks.pop(group, FIRST), (lease.run_epoch, lease.id))


def rest_seconds(took_seconds: float) -> float:
    """Return how long a whole claim, or a look, is not sent again after one that took so long."""
    return min(REST_AT_MOST_SECONDS, REST_RATIO * took_seconds)


def as_params(marks: Mapping[Group, Mark]) -> dict[str, Any]:
    """Return marks as the parameters of a claim. Numbers are spelled, so that none of them changes the types."""
    return {
        "mark_queues": [queue for queue, _, _ in marks],
        "mark_priorities": _spelled(priority for _, priority, _ in marks),
        "mark_tasks": [task for _, _, task in marks],
        "mark_epochs": _spelled(epoch for epoch, _ in marks.values()),
        "mark_ids": _spelled(id for _, id in marks.values()),
    }


def as_param(group: Group, mark: Mark) -> dict[str, Any]:
    """Return a mark as the parameters of a claim of its group."""
    queue, priority, task = group
    epoch, id = mark
    return {"mark_queue": queue, "mark_priority": priority, "mark_task": task, "mark_epoch": epoch, "mark_id": id}


def _spelled(numbers: Iterable[float]) -> str:
    return "{" + ",".join(map(repr, numbers)) + "}"
