"""The one mechanism for operator verbs: a link, a page with the facts, a POST that carries what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ..models import OperatorAction
from ..operations import Action, Actor, act
from ..protocol.connecting import job_alias
from ..protocol.operating import text
from ..refusals import IdempotencyKeyReusedError, VerbParamsError
from ..states import Outcome
from ..verbs import VERBS, Verb
from .asking import waiting_lines
from .confirming import REASONED_LEVEL, TYPED_LEVEL, ConfirmPages
from .consequences import CONSEQUENCES
from .inputs import placeholders, read_inputs
from .seen import Seen
from .words import ASKED_BEFORE, NOTHING, OUTCOMES, VERB_LABELS, instant

DONE = (Outcome.APPLIED, Outcome.REPLAYED, Outcome.REQUESTED)
STATUSES = {Outcome.GONE: HTTPStatus.GONE, Outcome.FORBIDDEN: HTTPStatus.FORBIDDEN}
"""Of the outcomes that did nothing; the others conflict with what is there now."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A verb as an object's page lists it; one that cannot be used says why."""

    label: Any
    url: str
    why_not: str | None
    consequence: Any


class VerbAdmin(ConfirmPages):
    """An admin whose objects can be acted on."""

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the object; None when nothing can be called so."""
        target = self.target_of(object_id)
        return None if target is None else super().get_object(request, target, from_field)

    def get_urls(self) -> list[URLPattern]:
        """Add one confirm page per verb and object. `act` owns the transaction, so ATOMIC_REQUESTS must not."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        view = self.unwrapped(self.confirm_view)
        return [path("<path:object_id>/do/<slug:verb_name>/", view, name=name), *super().get_urls()]

    def unwrapped(self, view: Any) -> Any:
        """Return a view of this site that ATOMIC_REQUESTS leaves alone."""
        view = self.admin_site.admin_view(view)
        for alias in connections:
            view = transaction.non_atomic_requests(using=alias)(view)
        return view

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what operators did to the object; Django's own log knows nothing of that."""
        target = self.target_of(unquote(object_id))
        if target is None or not self.admin_site.is_registered(OperatorAction):
            return super().history_view(request, object_id, extra_context)
        query = {"target_kind": self.target_kind, "target_id": target}
        return HttpResponseRedirect(self.page_url(OperatorAction, "changelist", **query))

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        """List every verb with the object; one that is not offered says why."""
        actor = self.actor_of(request)
        verbs = [verb for verb in VERBS.values() if verb.kind == self.target_kind and self.is_about(verb, obj)]
        offers = [self._offer(request, actor, verb, obj) for verb in verbs]
        # What can be done comes first; what cannot is still listed, with its reason.
        context["offers"] = sorted(offers, key=lambda offer: offer.why_not is not None)
        context["offered"] = [offer for offer in offers if offer.why_not is None]
        context["refused"] = [offer for offer in offers if offer.why_not is not None]
        context["waiting_requests"] = waiting_lines(self, obj)
        context["seen_at"] = instant(obj.now)
        return super().render_change_form(request, context, add=add, change=change, form_url=form_url, obj=obj)

    def _offer(self, request: HttpRequest, actor: Actor, verb: Verb, obj: Any) -> Offer:
        url = self.page_url(self.model, "verb", obj.pk, verb.name, seen=obj.version, **self.kept(request))
        return Offer(VERB_LABELS[verb.name], url, self._why_not(actor, verb, obj), CONSEQUENCES[verb.name])

    def confirm_view(self, request: HttpRequest, object_id: str, verb_name: str) -> HttpResponse:
        """GET shows the facts and asks for a reason; POST acts on what that page showed, or does nothing."""
        verb, target, actor = VERBS.get(verb_name), self.target_of(unquote(object_id)), self.actor_of(request)
        if verb is None or verb.kind != self.target_kind or target is None:
            raise Http404
        if verb.kind == "limit" and target.partition(":")[0] not in verb.limits:
            raise Http404
        if not actor.may(verb):
            return self._forbid(request, verb, target, actor)
        if request.method == "POST" and "look" not in request.POST:
            return self._post(request, verb, target, actor)
        return self._page(request, verb, target)

    def _forbid(self, request: HttpRequest, verb: Verb, target: str, actor: Actor) -> HttpResponse:
        """Refuse; an attempt to act is on record, a look at the page is not."""
        may_look = self.has_view_permission(request)
        # Who may not even look leaves no words of his own, and one row a minute: nobody can ever delete them.
        if request.method == "POST" and (may_look or not _was_forbidden_lately(actor)):
            reason = (text(request.POST.get("reason", "")) if may_look else "") or NOTHING
            params = placeholders(verb.name)
            act(verb.name, target, version_seen=None, actor=actor, reason=reason, params=params)
        if not may_look:
            raise PermissionDenied
        return self._refuse(request, verb, target, Outcome.FORBIDDEN)

    def _post(self, request: HttpRequest, verb: Verb, target: str, actor: Actor) -> HttpResponse:
        seen = Seen.read(request.POST.get("seen", ""))
        if seen is None or not seen.is_of(request, verb, target):
            error = _("This page was too old, or not yours: nothing was done.")
            return self._page(request, verb, target, error=error, status=HTTPStatus.CONFLICT)
        reason = text(request.POST.get("reason", ""))
        params, problems = read_inputs(verb.name, request.POST)
        if problems := {**self._problems(request, verb, target, reason), **problems}:
            return self._page(
                request, verb, target, problems=problems, status=HTTPStatus.UNPROCESSABLE_ENTITY, seen=seen
            )
        try:
            action = act(
                verb.name,
                target,
                version_seen=seen.version,
                actor=actor,
                reason=reason,
                ticket=request.POST.get("ticket", ""),
                params=params,
                idempotency_key=seen.key,
            )
        except IdempotencyKeyReusedError:
            error = _("This page was used before, with other values: nothing was done.")
            return self._page(request, verb, target, error=error, status=HTTPStatus.CONFLICT, seen=seen)
        except VerbParamsError as problem:
            said = _("“%(name)s” %(problem)s.") % {"name": problem.param, "problem": problem.problem}
            problems = {problem.param: said}
            return self._page(
                request, verb, target, problems=problems, status=HTTPStatus.UNPROCESSABLE_ENTITY, seen=seen
            )
        if action.outcome in DONE:
            return self._done(request, verb, target, action)
        return self._refuse(request, verb, target, action.outcome, seen, why=action.why or "")

    def _problems(self, request: HttpRequest, verb: Verb, target: str, reason: str) -> dict[str, str]:
        problems = {}
        if not reason and verb.level >= REASONED_LEVEL:
            problems["reason"] = _("Say why: the reason is kept in the audit log.")
        if verb.level >= TYPED_LEVEL and request.POST.get("typed", "").strip() != target:
            problems["typed"] = _("Type the number %(id)s to confirm.") % {"id": target}
        return problems

    def _done(self, request: HttpRequest, verb: Verb, target: str, action: Action) -> HttpResponse:
        at = None if action.replay is None else action.replay.created_at
        entry = self.link(OperatorAction, action.audit_id, str(action.audit_id))
        facts = {"verb": VERB_LABELS[verb.name], "audit_id": entry, "at": instant(at)}
        if action.outcome == Outcome.APPLIED:
            self.note(request, self.shown_as(target, action.facts), VERB_LABELS[verb.name])
        told = OUTCOMES[action.outcome] if action.replay is None or action.request_id is None else ASKED_BEFORE
        messages.success(request, format_html(str(told), **facts))
        url = self.page_url(self.model, "change", action.new_job_id or target, **self.kept(request))
        return HttpResponseRedirect(url, status=HTTPStatus.SEE_OTHER)

    def shown_as(self, target: str, facts: Mapping[str, Any]) -> Any:
        """Return what Django's log calls a target, from the facts that were found under its lock."""
        return self.model(pk=target)

    def note(self, request: HttpRequest, obj: Any, label: Any) -> None:
        """Show the action among the recent ones of Django's own log, where that works; ours is the truth."""
        with suppress(DatabaseError), transaction.atomic():
            self.log_change(request, obj, str(label))

    def _refuse(
        self, request: HttpRequest, verb: Verb, target: str, outcome: Outcome, seen: Seen | None = None, why: str = ""
    ) -> HttpResponse:
        status = STATUSES.get(outcome, HTTPStatus.CONFLICT)
        error = f"{OUTCOMES[outcome]} {why}".strip()
        return self._page(request, verb, target, error=error, status=status, seen=seen)


def _was_forbidden_lately(actor: Actor) -> bool:
    """Return whether the latest row of somebody is a refusal of the last minute; read by an index."""
    rows = OperatorAction.objects.using(job_alias()).filter(actor_id=actor.id).order_by("-id")
    latest = rows.annotate(is_late=Q(created_at__gt=Now() - timedelta(minutes=1))).values_list("outcome", "is_late")
    return latest.first() == (Outcome.FORBIDDEN.value, True)
