"""What a verb would do to a frozen set: how many rows it can be done to, how many not and why, and where they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.utils.translation import gettext as _

from ..operations import Actor
from ..protocol import freezing
from ..verb_reasons import why_not
from .words import span, state_words


def previewed(verb: Any, groups: list[freezing.Group], actor: Actor) -> dict[str, Any]:
    """Return how many rows can be acted on, how many not and why, and where they are."""
    skipped: Counter[str] = Counter()
    queues: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    can = referenced = 0
    oldest = 0.0
    for group in groups:
        why = _why_not(verb, group, actor)
        if why is not None:
            skipped[why] += group.jobs
            continue
        can += group.jobs
        referenced += group.with_reference
        queues[str(group.queue)] += group.jobs
        tasks[str(group.task)] += group.jobs
        oldest = max(oldest, group.oldest_seconds or 0.0)
    return {
        "can": can,
        "skipped": skipped.most_common(),
        "queues": queues.most_common(10),
        "tasks": tasks.most_common(10),
        "referenced": referenced,
        "oldest": span(oldest),
        "left": can + sum(skipped.values()),
    }


def _why_not(verb: Any, group: freezing.Group, actor: Actor) -> str | None:
    if group.state is None or group.queue is None:
        return _("gone")
    if not actor.may_touch(verb, group.queue, group.task):
        return _("You may not do this in its queue.")
    if not group.is_unchanged:
        return _("Changed since the set was frozen.")
    return why_not(verb, group.state, words=state_words, **group.known())
