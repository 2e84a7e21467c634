"""A verb's confirm page: the facts as they are, beside those that were seen, and the form."""

from __future__ import annotations

import uuid
from dataclasses import replace
from http import HTTPStatus
from itertools import zip_longest
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from .. import conf
from ..models import OperatorAction
from ..operations import Actor
from ..protocol.connecting import job_alias
from ..states import Outcome
from ..verb_reasons import why_not
from ..verbs import Verb
from .asking import AskedForAdmin
from .consequences import CONSEQUENCES
from .inputs import shown_inputs
from .rights import HIDDEN, Reader
from .seen import Seen
from .words import VERB_LABELS, instant, state_in_full, state_words, verb_words

REASONED_LEVEL = 2
"""From this level on, a reason is compulsory."""
TYPED_LEVEL = 3
"""From this level on, the target's number is typed by hand."""

USABLE = (HTTPStatus.OK, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Pages that can act. After any other answer the operator looks again first."""

Facts = list[tuple[Any, Any]]
"""Label and value."""


class ConfirmPages(AskedForAdmin):
    """An admin that can say what decides about its objects; subclasses say which kind of target they show."""

    words = staticmethod(state_words)
    """What the target's states are called."""
    in_full = staticmethod(state_in_full)
    """The same, with the word that commands have."""

    def target_of(self, object_id: str) -> str | None:
        """Return the target as `act` and the audit log name it; None for what no target is called."""
        raise NotImplementedError

    def has_page(self, pk: Any) -> bool:
        """Return whether a target can be called so."""
        return self.target_of(str(pk)) is not None

    def place_of(self, obj: Any) -> tuple[str, str | None]:
        """Return the queue, and the task if it has one, that the target belongs to."""
        raise NotImplementedError

    def places_of(self, obj: Any) -> list[tuple[str, str | None]]:
        """Return all queues that the target belongs to, where it can be several."""
        return [self.place_of(obj)]

    def state_of(self, obj: Any) -> str:
        """Return the target's state in the verbs' words."""
        return str(obj.state)

    def known_of(self, obj: Any) -> dict[str, Any]:
        """Return what else than the state decides whether a verb is offered."""
        return {}

    def facts_of(self, obj: Any) -> Facts:
        """Return what an operator must know before acting."""
        return [(_("State"), self.in_full(self.state_of(obj))), (_("Version"), obj.version)]

    def is_about(self, verb: Verb, obj: Any) -> bool:
        """Say whether a verb is listed with an object at all, offered or not."""
        return True

    def prefilled(self, request: HttpRequest, verb: Verb, obj: Any) -> dict[str, str]:
        """Return what a verb's form begins with, by the field's name."""
        return {}

    def effects_in_question(self, verb: Verb, obj: Any) -> list[str]:
        """Return the names of the effects that a verb's verdict can be about."""
        return []

    def _why_not(self, actor: Actor, verb: Verb, obj: Any) -> str | None:
        """Return in words why a verb is not offered; None when it is."""
        if conf.current().console_read_only:
            return _("The console is read-only at the moment.")
        if not actor.may(verb):
            return _("You do not have the permission pgqueue.%(name)s.") % {"name": verb.permission}
        if not all(actor.may_touch(verb, *place) for place in self.places_of(obj)):
            return _("You may not do this in its queue.")
        return why_not(verb, self.state_of(obj), words=self.words, **self.known_of(obj))

    def actor_of(self, request: HttpRequest) -> Actor:
        """Return who acts: somebody who may not look may do nothing."""
        actor = Actor.of(request.user)
        return actor if self.has_view_permission(request) else replace(actor, permissions=frozenset())

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
        told: dict[str, Any] = {"error": error, "problems": problems or {}, "status": status, "seen": seen}
        return self.bounded(request, lambda: self._facts_page(request, verb, target, **told))

    def _facts_page(
        self,
        request: HttpRequest,
        verb: Verb,
        target: str,
        *,
        error: str,
        problems: dict[str, str],
        status: HTTPStatus,
        seen: Seen | None,
    ) -> HttpResponse:
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
            "crumbs": self.crumbs((self._object_url(request, target), obj or target), ("", VERB_LABELS[verb.name])),
            "target": target,
            "error": error,
            "problems": problems,
            "list_url": self.list_url(request),
            "keeps_text": request.method == "POST" and status != HTTPStatus.FORBIDDEN,
            "inputs": [],
            "needs_approval": verb.name in conf.current().two_person_verbs,
            "needs_reason": verb.level >= REASONED_LEVEL,
            "reason": request.POST.get("reason", ""),
            "ticket": request.POST.get("ticket", ""),
        }
        if obj is not None:
            context |= self._facts_context(request, verb, target, obj, seen)
            effects, prefilled = self.effects_in_question(verb, obj), self.prefilled(request, verb, obj)
            context["inputs"] = shown_inputs(verb.name, request.POST, effects, problems, prefilled)
            usable = status in USABLE and context["refusal"] is None
            context["token"] = self._token(request, verb, target, obj, seen, context["facts"]) if usable else ""
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
            "object_url": self._object_url(request, target),
            "changed": changed,
            "changed_by": self._last_action(request, target, obj.version) if changed else None,
            "compared": bool(before),
            "facts": [(label, now, was) for (label, now), was in zip_longest(facts, before)],
            "seen_at": instant(obj.now),
            "consequence": CONSEQUENCES[verb.name],
            "needs_typing": verb.level >= TYPED_LEVEL,
            "refusal": self._why_not(self.actor_of(request), verb, obj),
        }

    def _object_url(self, request: HttpRequest, target: str) -> str:
        return self.page_url(self.model, "change", target, **self.kept(request))

    def _last_action(self, request: HttpRequest, target: str, version: int) -> dict[str, Any] | None:
        """Return the operator's action that made the version; None when a worker made it."""
        actions = OperatorAction.objects.using(job_alias()).filter(target_kind=self.target_kind, target_id=target)
        action = actions.filter(outcome=Outcome.APPLIED).order_by("-id").first()
        if action is None or action.version_after != version:
            return None
        if not Reader.of(request).reasons:
            action.reason, action.ticket = str(HIDDEN), ""
        label = verb_words(action.verb)
        return {"action": action, "label": label, "entry": self.link(OperatorAction, action.pk, _("audit entry"))}

    def _token(
        self, request: HttpRequest, verb: Verb, target: str, obj: Any, seen: Seen | None, shown: list[Any]
    ) -> str:
        """Sign what the page shows; a page that only lacks a reason keeps its token, and so its age."""
        if seen is not None:
            return request.POST["seen"]
        facts = [now for _label, now, _was in shown]
        return Seen(str(request.user.pk), verb.name, target, obj.version, facts, uuid.uuid4().hex).sign()
