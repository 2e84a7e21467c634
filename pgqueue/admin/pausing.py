"""What can be paused: queues, and the jobs of a tenant, a task or a resource."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from ..verbs import ACTIVE, PAUSED
from .confirming import Facts
from .verbs import VerbAdmin
from .words import NOTHING, instant, queue_words


class PausedAdmin(VerbAdmin):
    """An admin of rows that say who paused them, when, why, and until when."""

    words = in_full = staticmethod(queue_words)

    def state_of(self, obj: Any) -> str:
        """Return the state in the verbs' words; a pause whose time is over is none."""
        over = obj.paused_until is not None and obj.paused_until <= obj.now
        return ACTIVE if obj.paused_at is None or over else PAUSED

    def facts_of(self, obj: Any) -> Facts:
        """Return what decides about a row."""
        return [
            *super().facts_of(obj),
            (_("Paused by"), self.by(obj)),
            (_("Reason"), self.why(obj)),
            (_("Paused since"), self.since(obj)),
            (_("Resumes by itself"), self.until(obj)),
        ]

    @admin.display(description=_("state"))
    def state(self, row: Any) -> Any:
        """Return whether workers take from the row."""
        return queue_words(self.state_of(row))

    @admin.display(description=_("paused by"))
    def by(self, row: Any) -> str:
        """Return who paused it."""
        return row.paused_by or NOTHING if self._is_paused(row) else NOTHING

    @admin.display(description=_("reason"))
    def why(self, row: Any) -> str:
        """Return why it was paused."""
        return row.pause_reason or NOTHING if self._is_paused(row) else NOTHING

    @admin.display(description=_("paused since"))
    def since(self, row: Any) -> str:
        """Return when it was paused."""
        return instant(row.paused_at) if self._is_paused(row) else NOTHING

    @admin.display(description=_("resumes by itself"))
    def until(self, row: Any) -> Any:
        """Return when the pause ends by itself."""
        if not self._is_paused(row):
            return NOTHING
        return _("never") if row.paused_until is None else instant(row.paused_until)

    def _is_paused(self, row: Any) -> bool:
        return self.state_of(row) == PAUSED
