"""The one mechanism for operator verbs: a link, a page with the facts, a POST that carries what was seen."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import zip_longest
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext as _

from .. import conf
from ..models import OperatorAction
from ..operations import Action, Actor, act
from ..protocol.connecting import job_alias
from ..protocol.operating import text
from ..refusals import IdempotencyKeyReusedError
from ..states import Outcome
from ..verbs import VERBS, Verb, why_not
from .base import READING, ReadOnlyAdmin
from .inputs import placeholders, read_inputs, shown_inputs
from .seen import Seen
from .words import CONSEQUENCES, NOTHING, OUTCOMES, VERB_LABELS, instant, state_words

REASONED_LEVEL = 2
"""From this level on, a reason is compulsory."""
TYPED_LEVEL = 3
"""From this level on, the target's number is typed by hand."""

STATUSES = {Outcome.GONE: HTTPStatus.GONE, Outcome.FORBIDDEN: HTTPStatus.FORBIDDEN}
"""Of the outcomes that did nothing; the others conflict with what is there now."""

USABLE = (HTTPStatus.OK, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Pages that can act. After any other answer the operator looks again first."""

Facts = list[tuple[Any, Any]]
"""Label and value."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A verb as an object's page lists it; one that cannot be used says why."""

    label: Any
    url: str
    why_not: str | None


class VerbAdmin(ReadOnlyAdmin):
    """An admin whose objects can be acted on; subclasses say which kind of target they show."""

    target_kind: str
    words = staticmethod(state_words)
    """What the target's states are called."""

    def target_of(self, object_id: str) -> str | None:
        """Return the target as `act` and the audit log name it; None for what no target is called."""
        raise NotImplementedError

    def place_of(self, obj: Any) -> tuple[str, str | None]:
        """Return the queue, and the task if it has one, that the target belongs to."""
        raise NotImplementedError

    def state_of(self, obj: Any) -> str:
        """Return the target's state in the verbs' words."""
        return str(obj.state)

    def known_of(self, obj: Any) -> dict[str, Any]:
        """Return what else than the state decides whether a verb is offered."""
        return {}

    def facts_of(self, obj: Any) -> Facts:
        """Return what an operator must know before acting."""
        return [(_("State"), self.words(self.state_of(obj))), (_("Version"), obj.version)]

    def effects_in_question(self, verb: Verb, obj: Any) -> list[str]:
        """Return the names of the effects that a verb's verdict can be about."""
        return []

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
        verbs = [verb for verb in VERBS.values() if verb.kind == self.target_kind]
        offers = [self._offer(request, actor, verb, obj) for verb in verbs]
        # What can be done comes first; what cannot is still listed, with its reason.
        context["offers"] = sorted(offers, key=lambda offer: offer.why_not is not None)
        context["seen_at"] = instant(obj.now)
        return super().render_change_form(request, context, add=add, change=change, form_url=form_url, obj=obj)

    def _offer(self, request: HttpRequest, actor: Actor, verb: Verb, obj: Any) -> Offer:
        url = self.page_url(self.model, "verb", obj.pk, verb.name, seen=obj.version, **self.kept(request))
        return Offer(VERB_LABELS[verb.name], url, self._why_not(actor, verb, obj))

    def _why_not(self, actor: Actor, verb: Verb, obj: Any) -> str | None:
        """Return in words why a verb is not offered; None when it is."""
        if conf.current().console_read_only:
            return _("The console is read-only at the moment.")
        if not actor.may(verb):
            return _("You do not have the permission pgqueue.%(name)s.") % {"name": verb.permission}
        if not actor.may_touch(verb, *self.place_of(obj)):
            return _("You may not do this in its queue.")
        return why_not(verb, self.state_of(obj), words=self.words, **self.known_of(obj))

    def actor_of(self, request: HttpRequest) -> Actor:
        """Return who acts: somebody who may not look may do nothing."""
        actor = Actor.of(request.user)
        return actor if self.has_view_permission(request) else replace(actor, permissions=frozenset())

    def confirm_view(self, request: HttpRequest, object_id: str, verb_name: str) -> HttpResponse:
        """GET shows the facts and asks for a reason; POST acts on what that page showed, or does nothing."""
        verb, target, actor = VERBS.get(verb_name), self.target_of(unquote(object_id)), self.actor_of(request)
        if verb is None or verb.kind != self.target_kind or target is None:
            raise Http404
        if not actor.may(verb):
            return self._forbid(request, verb, target, actor)
        if request.method == "POST" and "look" not in request.POST:
            return self._post(request, verb, target, actor)
        if request.method in READING:
            return self.looked(request, lambda: self._page(request, verb, target))
        return self._page(request, verb, target)

    def _forbid(self, request: HttpRequest, verb: Verb, target: str, actor: Actor) -> HttpResponse:
        """Refuse; an attempt to act is on record, a look at the page is not."""
        if request.method == "POST":
            reason = text(request.POST.get("reason", "")) or NOTHING
            params = placeholders(verb.name)
            act(verb.name, target, version_seen=None, actor=actor, reason=reason, params=params)
        if not self.has_view_permission(request):
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
        if action.outcome in (Outcome.APPLIED, Outcome.REPLAYED):
            return self._done(request, verb, target, action)
        return self._refuse(request, verb, target, action.outcome, seen, why=action.why or "")

    def _problems(self, request: HttpRequest, verb: Verb, target: str, reason: str) -> dict[str, str]:
        problems = {}
        if not reason and verb.level >= REASONED_LEVEL:
            problems["reason"] = _("Say why: the reason is kept in the audit log.")
        if verb.level >= TYPED_LEVEL and request.POST.get("typed", "").strip() != target:
            problems["typed"] = _("Type %(id)s to confirm.") % {"id": target}
        return problems

    def _done(self, request: HttpRequest, verb: Verb, target: str, action: Action) -> HttpResponse:
        at = None if action.replay is None else action.replay.created_at
        entry = self.link(OperatorAction, action.audit_id, str(action.audit_id))
        facts = {"verb": VERB_LABELS[verb.name], "audit_id": entry, "at": instant(at)}
        if action.outcome == Outcome.APPLIED:
            self.note(request, self.get_object(request, target), VERB_LABELS[verb.name])
        messages.success(request, format_html(str(OUTCOMES[action.outcome]), **facts))
        url = self.page_url(self.model, "change", action.new_job_id or target, **self.kept(request))
        return HttpResponseRedirect(url, status=HTTPStatus.SEE_OTHER)

    def note(self, request: HttpRequest, obj: Any, label: Any) -> None:
        """Show the action among the recent ones of Django's own log, where that works; ours is the truth."""
        if obj is not None:
            with suppress(DatabaseError), transaction.atomic():
                self.log_change(request, obj, str(label))

    def _refuse(
        self, request: HttpRequest, verb: Verb, target: str, outcome: Outcome, seen: Seen | None = None, why: str = ""
    ) -> HttpResponse:
        status = STATUSES.get(outcome, HTTPStatus.CONFLICT)
        error = f"{OUTCOMES[outcome]} {why}".strip()
        return self._page(request, verb, target, error=error, status=status, seen=seen)

    def _page(
        self,
        request: HttpRequest,
        verb: Verb,
        target: str,
        *,
        error: str = "",
        problems: dict[str, str] | None = None,
        status: HTTPStatus = HTTPStatus.OK,
        seen: Seen | None = None,
    ) -> HttpResponse:
        """Show the facts as they are now, beside those `seen` where they changed, and the form.

        A page that refused carries no token to act with: looking again takes a click of its own, so that
        hammering on the button never acts on facts that nobody read.
        """
        obj = self.get_object(request, target)
        if obj is None and status != HTTPStatus.GONE:
            raise Http404
        context = {
            **self.admin_site.each_context(request),
            **self.page_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": VERB_LABELS[verb.name],
            "subtitle": obj or target,
            "target": target,
            "error": error,
            "problems": problems or {},
            "list_url": self.list_url(request),
            "keeps_text": request.method == "POST" and status != HTTPStatus.FORBIDDEN,
            "inputs": [],
            "needs_reason": verb.level >= REASONED_LEVEL,
            "reason": request.POST.get("reason", ""),
            "ticket": request.POST.get("ticket", ""),
        }
        if obj is not None:
            context |= self._facts_context(request, verb, target, obj, seen)
            context["inputs"] = shown_inputs(verb.name, request.POST, self.effects_in_question(verb, obj))
            usable = status in USABLE and context["refusal"] is None
            context["token"] = self._token(request, verb, target, obj, seen) if usable else ""
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/pgqueue/confirm.html", context, status=status)

    def _facts_context(
        self, request: HttpRequest, verb: Verb, target: str, obj: Any, seen: Seen | None
    ) -> dict[str, Any]:
        version_seen = request.GET.get("seen", str(obj.version)) if seen is None else str(seen.version)
        changed = version_seen != str(obj.version)
        facts = [(label, str(value)) for label, value in self.facts_of(obj)]
        before = seen.facts if seen is not None and changed else []
        return {
            "object_url": self.page_url(self.model, "change", target, **self.kept(request)),
            "changed": changed,
            "changed_by": self._last_action(target, obj.version) if changed else None,
            "compared": bool(before),
            "facts": [(label, now, was) for (label, now), was in zip_longest(facts, before)],
            "seen_at": instant(obj.now),
            "consequence": CONSEQUENCES[verb.name],
            "needs_typing": verb.level >= TYPED_LEVEL,
            "refusal": self._why_not(self.actor_of(request), verb, obj),
        }

    def _last_action(self, target: str, version: int) -> dict[str, Any] | None:
        """Return the operator's action that made the version; None when a worker made it."""
        actions = OperatorAction.objects.using(job_alias()).filter(target_kind=self.target_kind, target_id=target)
        action = actions.filter(outcome=Outcome.APPLIED).order_by("-id").first()
        if action is None or action.version_after != version:
            return None
        label = VERB_LABELS.get(action.verb, action.verb)
        return {"action": action, "label": label, "entry": self.link(OperatorAction, action.pk, _("audit entry"))}

    def _token(self, request: HttpRequest, verb: Verb, target: str, obj: Any, seen: Seen | None) -> str:
        """Sign what the page shows; a page that only lacks a reason keeps its token, and so its age."""
        if seen is not None:
            return request.POST["seen"]
        facts = [str(value) for _label, value in self.facts_of(obj)]
        return Seen(str(request.user.pk), verb.name, target, obj.version, facts, uuid.uuid4().hex).sign()
