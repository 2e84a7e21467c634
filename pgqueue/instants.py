"""One kind of time for all that an application sees: the kind that `timezone.now()` has under its settings."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from django.conf import settings
from django.utils import timezone

Instant = TypeVar("Instant", datetime, datetime | None)


def as_project(at: Instant) -> Instant:
    """Return an instant as the project has them: without `USE_TZ` naive, in `TIME_ZONE`.

    The worker's own connections always give aware ones, Django's give what its settings say.
    """
    if at is None or settings.USE_TZ or timezone.is_naive(at):
        return at
    return timezone.make_naive(at, timezone.get_default_timezone())
