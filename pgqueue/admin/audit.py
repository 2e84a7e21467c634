"""The audit log."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from ..models import Job, Limit, OperatorAction, Queue
from .base import ReadOnlyAdmin
from .keyset import Order
from .words import NOTHING, instant_of

TARGETS = {"job": Job, "queue": Queue, "limit": Limit}


class OperatorActionAdmin(ReadOnlyAdmin):
    """Every action and refusal, newest first."""

    list_display = (
        instant_of("created_at", _("when")),
        "actor_name",
        "verb",
        "target",
        "outcome",
        "versions",
        "reason",
        "ticket",
    )
    url_lookups = ("target_kind", "target_id")
    ordering = ("-id",)
    orders = {"newest": (_("newest"), Order(("-id",)))}
    fields = readonly_fields = (
        instant_of("created_at", _("when")),
        "actor_name",
        "actor_id",
        "verb",
        "target",
        "outcome",
        "versions",
        "state_found",
        "reason",
        "ticket",
        "params",
        "facts",
        "idempotency_key",
    )
    empty_text = _("Nobody has acted, here or with pgqueue_act, on what you look at.")

    @admin.display(description=_("target"))
    def target(self, action: OperatorAction) -> Any:
        """Return what was acted on, with a link to it."""
        kind, pk = action.target_kind, action.target_id
        return self.link(TARGETS[kind], pk, f"{kind} {pk}") if kind in TARGETS else f"{kind} {pk}"

    @admin.display(description=_("version seen → found → after"))
    def versions(self, action: OperatorAction) -> str:
        """Return the versions that explain the outcome."""
        versions = (action.version_seen, action.version_found, action.version_after)
        return " → ".join(NOTHING if version is None else str(version) for version in versions)
