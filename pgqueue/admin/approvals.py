"""What one person asked for and another one has to approve: the same facts, and the same mechanism for deciding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext_lazy as _

from ..models import ApprovalRequest
from ..operations import Actor
from ..verb_reasons import bar, why_barred
from ..verbs import APPROVE, VERBS, Verb
from .asking import TARGETS
from .confirming import Facts
from .consequences import CONSEQUENCES
from .keyset import Order
from .marks import both, text_of
from .rights import Reader
from .search import job_id
from .verbs import VerbAdmin
from .words import NOTHING, REQUEST_STATES, instant_of, request_words, verb_words


class WaitingFilter(admin.SimpleListFilter):
    """Those that can be decided, or what became of the others."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states."""
        return list(REQUEST_STATES.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep those of the chosen state; what has expired does not wait any more."""
        match self.value():
            case None:
                return queryset
            case "waiting":
                return queryset.filter(state="waiting", expires_at__gt=Now())
            case "expired":
                return queryset.filter(state="waiting", expires_at__lte=Now())
        return queryset.filter(state=self.value())


class ApprovalRequestAdmin(VerbAdmin):
    """Requests for approval, newest first."""

    target_kind = "request"
    words = in_full = staticmethod(request_words)
    list_display = (
        "number",
        "asked",
        "target",
        text_of("asked_by", _("asked by")),
        "standing",
        instant_of("expires_at", _("expires")),
        text_of("reason", _("reason")),
        text_of("ticket", _("ticket")),
    )
    list_filter = (WaitingFilter,)
    url_lookups = ("state",)
    ordering = ("-id",)
    orders = {"newest": (_("newest"), Order(("-id",)))}
    fields = readonly_fields = (
        "asked",
        "target",
        "standing",
        text_of("asked_by", _("asked by")),
        text_of("reason", _("reason")),
        text_of("ticket", _("ticket")),
        "given",
        text_of("version_seen", _("version then")),
        instant_of("created_at", _("asked at")),
        instant_of("expires_at", _("expires")),
        instant_of("decided_at", _("decided at")),
        text_of("decided_by", _("decided by")),
        text_of("version", _("version")),
    )
    empty_text = _(
        "Nobody waits for approval. PGQUEUE['TWO_PERSON_VERBS'] names what a second person must approve; what is "
        "asked for appears here."
    )

    def target_of(self, object_id: str) -> str | None:
        """Return a request's number without what may stand around it."""
        number = job_id(object_id)
        return None if number is None else str(number)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the request, and what it is about as that stands now."""
        asked = super().get_object(request, object_id, from_field)
        if asked is not None:
            asked.params = Reader.of(request).params(asked.params)
            of = self.admin_site._registry.get(TARGETS[asked.target_kind])
            asked.of = of if of is not None and of.has_view_permission(request) else None
            asked.about = None if asked.of is None else asked.of.get_object(request, asked.target_id)
        return asked

    def shown_as(self, target: str, facts: Mapping[str, Any]) -> Any:
        """Return the request by what it is about."""
        told = {name: facts[name] for name in ("verb", "target_kind", "target_id")}
        return ApprovalRequest(pk=int(target), **told)

    def place_of(self, obj: Any) -> tuple[str, str | None]:
        """Return the queue and task of what it is about."""
        return obj.queue or "", obj.task

    def _why_not(self, actor: Actor, verb: Verb, obj: Any) -> str | None:
        """Whoever approves must see what it is about, and may do it too."""
        why = super()._why_not(actor, verb, obj)
        asked = VERBS.get(obj.verb)
        if why is not None or verb.name != APPROVE or asked is None:
            return why
        for name, held in ((asked.permission, actor.may(asked)), (f"view_{_name(obj)}", obj.of is not None)):
            if not held:
                return gettext("You do not have the permission pgqueue.%(name)s.") % {"name": name}
        if not actor.may_touch(asked, *self.place_of(obj)):
            return gettext("You may not do this in its queue.")
        by, asked_by = (actor.id, actor.name), (obj.asked_by_id, obj.asked_by)
        barred = bar(is_expired=obj.expires_at <= obj.now, asked_by=asked_by, by=by)
        if barred is None and _has_changed(obj):
            barred = "changed"
        return None if barred is None else why_barred(barred)

    def facts_of(self, obj: Any) -> Facts:
        """Return what was asked for, and the facts that decide about its target, as its own page shows them."""
        given = [(_("Given: %(name)s") % {"name": name}, str(value)) for name, value in sorted(obj.params.items())]
        facts = obj.of.facts_of(obj.about) if obj.about is not None and hasattr(obj.of, "facts_of") else []
        target = f"{obj.target_kind} {obj.target_id}"
        return [
            *super().facts_of(obj),
            (_("Asked for"), f"{verb_words(obj.verb)}, {target}"),
            (_("Asked by"), obj.asked_by),
            (_("Reason"), obj.reason),
            (_("Ticket"), obj.ticket or NOTHING),
            *given,
            (_("What it does"), CONSEQUENCES.get(obj.verb, NOTHING)),
            (_("Version then"), NOTHING if obj.version_seen is None else obj.version_seen),
            *(((_("%(target)s: %(fact)s") % {"target": target, "fact": fact}), value) for fact, value in facts),
            *_of_a_set(obj),
        ]

    @admin.display(description=_("number"))
    def number(self, obj: ApprovalRequest) -> str:
        """Return the number as it is typed."""
        return str(obj.pk)

    @admin.display(description=_("asked for"))
    def asked(self, obj: ApprovalRequest) -> Any:
        """Return what the console calls the verb, and what commands do."""
        return both(verb_words(obj.verb), obj.verb)

    @admin.display(description=_("given"))
    def given(self, obj: ApprovalRequest) -> str:
        """Return the params, with the names that commands have."""
        return ", ".join(f"{name}: {value}" for name, value in sorted(obj.params.items())) or NOTHING

    @admin.display(description=_("target"))
    def target(self, obj: ApprovalRequest) -> Any:
        """Return what it is about, with a link to it."""
        return self.link(TARGETS[obj.target_kind], obj.target_id, f"{obj.target_kind} {obj.target_id}")

    @admin.display(description=_("state"))
    def standing(self, obj: Any) -> Any:
        """Return whether it waits, what was decided, or that it is too late."""
        if obj.state == "waiting" and obj.expires_at <= obj.now:
            return request_words("expired")
        decided = {"state": request_words(obj.state), "who": obj.decided_by}
        return gettext_lazy("%(state)s by %(who)s") % decided if obj.decided_by else request_words(obj.state)


def _name(obj: ApprovalRequest) -> str:
    return str(TARGETS[obj.target_kind]._meta.model_name)


def _has_changed(obj: Any) -> bool:
    """Say whether a request's target is gone, or not as it was seen."""
    if obj.about is None:
        return True
    return bool(obj.about.state != "frozen" if obj.target_kind == "bulk" else obj.about.version != obj.version_seen)


def _of_a_set(obj: Any) -> Facts:
    if obj.target_kind != "bulk" or obj.about is None:
        return []
    return [(_("Jobs"), obj.about.size), (_("Filter"), obj.about.filter)]
