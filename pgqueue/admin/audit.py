"""The audit log."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import ApprovalRequest, OperatorAction
from .asking import TARGETS
from .exports import ExportedAdmin
from .keyset import Order
from .marks import both, text_of
from .rights import Reader
from .words import NOTHING, instant_of, outcome_words, state_words, verb_words

EVERY_TARGET = {**TARGETS, "request": ApprovalRequest}


class OperatorActionAdmin(ExportedAdmin):
    """Every action and refusal, newest first."""

    list_display = (
        instant_of("created_at", _("when")),
        text_of("actor_name", _("who")),
        "action",
        "target",
        "came_of_it",
        "versions",
        text_of("reason", _("reason")),
        text_of("ticket", _("ticket")),
    )
    url_lookups = ("target_kind", "target_id")
    export_kind = "operatoraction"
    export_columns = (
        *("id", "created_at", "actor_id", "actor_name", "verb", "target_kind", "target_id", "outcome"),
        *("version_seen", "version_found", "version_after", "state_found", "reason", "ticket", "idempotency_key"),
    )
    ordering = ("-id",)
    orders = {"newest": (_("newest"), Order(("-id",)))}
    fields = readonly_fields = (
        instant_of("created_at", _("when")),
        "actor_name",
        "actor_id",
        "action",
        "target",
        "came_of_it",
        "versions",
        "found",
        "reason",
        "ticket",
        "params",
        "facts",
        "idempotency_key",
    )
    empty_text = _("Nobody has acted, here or with pgqueue_act, on what you look at.")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the entry, without what the user may not see: results stand among the params of verdicts."""
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.params = Reader.of(request).params(found.params)
        return found

    @admin.display(description=_("action"))
    def action(self, action: OperatorAction) -> Any:
        """Return what the console calls the verb, and what commands do."""
        return both(verb_words(action.verb), action.verb)

    @admin.display(description=_("outcome"))
    def came_of_it(self, action: OperatorAction) -> Any:
        """Return the outcome in the same words as everywhere, and its own."""
        return both(outcome_words(action.outcome), action.outcome)

    @admin.display(description=_("state found"))
    def found(self, action: OperatorAction) -> Any:
        """Return the state that the target was found in."""
        if action.state_found is None or action.target_kind != "job":
            return action.state_found or NOTHING
        return both(state_words(action.state_found), action.state_found)

    @admin.display(description=_("target"))
    def target(self, action: OperatorAction) -> Any:
        """Return what was acted on, with a link to it."""
        kind, pk = action.target_kind, action.target_id
        return self.link(EVERY_TARGET[kind], pk, f"{kind} {pk}") if kind in EVERY_TARGET and pk else f"{kind} {pk}"

    @admin.display(description=_("version seen → found → after"))
    def versions(self, action: OperatorAction) -> str:
        """Return the versions that explain the outcome."""
        versions = (action.version_seen, action.version_found, action.version_after)
        return " → ".join(NOTHING if version is None else str(version) for version in versions)
