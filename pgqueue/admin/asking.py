"""What waits for approval about a target, on the target's own page."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, QuerySet, TextField
from django.db.models.functions import Cast, JSONObject, Now
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ..models import ApprovalRequest, BulkAction, Job, Limit, Queue, Worker
from ..verb_reasons import why_barred
from .base import ReadOnlyAdmin
from .words import verb_words

TARGETS: dict[str, Any] = {"job": Job, "queue": Queue, "limit": Limit, "worker": Worker, "bulk": BulkAction}
"""What can be asked for, by its kind."""
SHOWN_AT_MOST = 5
"""Requests beside their target; the list has all."""


def with_requests(rows: QuerySet[Any], kind: str) -> QuerySet[Any]:
    """Bring along, as `asked_for`, what waits for approval about each target."""
    waiting = ApprovalRequest.objects.filter(
        target_kind=kind, target_id=Cast(OuterRef("pk"), TextField()), state="waiting", expires_at__gt=Now()
    )
    told = JSONObject(id="id", verb="verb", by="asked_by", reason="reason", seen="version_seen")
    annotated: QuerySet[Any] = rows.annotate(
        asked_for=ArraySubquery(waiting.order_by("id").values(told=told)[:SHOWN_AT_MOST])
    )
    return annotated


class AskedForAdmin(ReadOnlyAdmin):
    """An admin whose objects may be what somebody asked for."""

    target_kind: str

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Bring along what waits about an object, on its own pages: no query more."""
        rows = super().get_queryset(request)
        match = request.resolver_match
        is_page = match is not None and "object_id" in match.kwargs and self.target_kind in TARGETS
        return with_requests(rows, self.target_kind) if is_page else rows


def waiting_lines(of: ReadOnlyAdmin, obj: Any) -> list[Any]:
    """Say what waits for approval about a target, with links."""
    lines = []
    for asked in getattr(obj, "asked_for", []):
        facts = {"verb": verb_words(asked["verb"]), "who": asked["by"], "why": asked["reason"]}
        told = _("Waits for approval by another person: %(verb)s, asked for by %(who)s: “%(why)s”.") % facts
        stale = why_barred("changed") if asked["seen"] is not None and asked["seen"] != obj.version else ""
        link = of.link(ApprovalRequest, asked["id"], _("Request %(id)s") % {"id": str(asked["id"])})
        lines.append(format_html("{} {} ({})", told, stale, link))
    return lines
