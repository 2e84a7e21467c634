"""The one mechanism for operator verbs: a link, a page with the facts, a POST that carries what was seen."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.core import signing
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from ..operations import VERBS, Action, Actor, Verb, act, why_not
from ..states import Outcome
from .base import ReadOnlyAdmin
from .words import CONSEQUENCES, OUTCOMES, VERB_LABELS

SALT = "pgqueue.admin.confirm"
CONFIRM_SECONDS = 600
TYPED_LEVEL = 3
"""From this level on, the target's number is typed by hand."""

STATUSES = {
    Outcome.GONE: HTTPStatus.GONE,
    Outcome.FORBIDDEN: HTTPStatus.FORBIDDEN,
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A verb as an object's page lists it; one that cannot be used says why."""

    label: Any
    url: str
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a confirm page showed, signed: whose it is, which verb, which target, which version."""

    user: str
    verb: str
    target: str
    version: int
    key: str

    @classmethod
    def now(cls, request: HttpRequest, verb: Verb, target: str, version: int) -> Seen:
        """Return a new page's facts; its key makes a second submit of the same page a replay."""
        return cls(str(request.user.pk), verb.name, target, version, uuid.uuid4().hex)

    @classmethod
    def read(cls, request: HttpRequest, verb: Verb, target: str) -> Seen | None:
        """Return what the posted page showed; None when it expired, or belongs to somebody or something else."""
        try:
            seen = cls(**signing.loads(request.POST.get("seen", ""), salt=SALT, max_age=CONFIRM_SECONDS))
        except (signing.BadSignature, TypeError):
            return None
        mine = (str(request.user.pk), verb.name, target)
        return seen if (seen.user, seen.verb, seen.target) == mine else None

    def sign(self) -> str:
        """Return the hidden field's value."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return str(signing.dumps(fields, salt=SALT))


class VerbAdmin(ReadOnlyAdmin):
    """An admin whose objects can be acted on; subclasses say which kind of target they show."""

    change_form_template = "admin/pgqueue/change_form.html"
    target_kind: str

    def get_urls(self) -> list[URLPattern]:
        """Add one confirm page per verb and object."""
        view = self.admin_site.admin_view(self.confirm_view)
        for alias in connections:
            view = transaction.non_atomic_requests(using=alias)(view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        return [path("<path:object_id>/do/<slug:verb_name>/", view, name=name), *super().get_urls()]

    def state_of(self, obj: Any) -> str:
        """Return the target's state in the verbs' words."""
        return str(obj.state)

    def facts_of(self, obj: Any) -> list[tuple[Any, Any]]:
        """Return what the confirm page shows: label and value."""
        return [(_("State"), self.state_of(obj)), (_("Version"), obj.version)]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the object with its verbs; one that is not offered says why."""
        obj = self.get_object(request, object_id)
        offers = [] if obj is None else self._offers(request, obj)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), "offers": offers})

    def _offers(self, request: HttpRequest, obj: Model) -> list[Offer]:
        actor = Actor.of(request.user)
        return [self._offer(actor, verb, obj) for verb in VERBS.values() if verb.kind == self.target_kind]

    def _offer(self, actor: Actor, verb: Verb, obj: Model) -> Offer:
        refusal = why_not(verb, self.state_of(obj)) if actor.may(verb) else _("You do not have the permission.")
        return Offer(VERB_LABELS[verb.name], self._verb_url(obj, verb), refusal)

    def _verb_url(self, obj: Model, verb: Verb) -> str:
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_verb"
        return str(reverse(name, args=[obj.pk, verb.name]))

    def _object_url(self, object_id: str) -> str:
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change"
        return str(reverse(name, args=[object_id]))

    def confirm_view(self, request: HttpRequest, object_id: str, verb_name: str) -> HttpResponse:
        """GET shows the facts and asks for a reason; POST acts on what that page showed, or does nothing."""
        verb = VERBS.get(verb_name)
        if verb is None or verb.kind != self.target_kind:
            raise Http404
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._post(request, verb, object_id)
        if not Actor.of(request.user).may(verb):
            raise PermissionDenied
        return self._page(request, verb, object_id)

    def _post(self, request: HttpRequest, verb: Verb, object_id: str) -> HttpResponse:
        seen = Seen.read(request, verb, object_id)
        if seen is None:
            error = _("This page is too old, or not yours: nothing was done. Look at the facts again.")
            return self._page(request, verb, object_id, error=error, status=HTTPStatus.CONFLICT)
        reason = request.POST.get("reason", "").strip()
        problem = self._problem(request, verb, object_id, reason)
        if problem is not None:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
            return self._page(request, verb, object_id, error=problem, status=status, seen=seen)
        action = act(
            verb.name,
            object_id if verb.kind == "queue" else int(object_id),
            version_seen=seen.version,
            actor=Actor.of(request.user),
            reason=reason,
            ticket=request.POST.get("ticket", ""),
            idempotency_key=seen.key,
        )
        return self._answer(request, verb, object_id, action)

    def _problem(self, request: HttpRequest, verb: Verb, object_id: str, reason: str) -> str | None:
        if not reason:
            return _("Say why: the reason is kept in the audit log.")
        if verb.level >= TYPED_LEVEL and request.POST.get("typed", "").strip() != object_id:
            return _("Type %(id)s to confirm.") % {"id": object_id}
        return None

    def _answer(self, request: HttpRequest, verb: Verb, object_id: str, action: Action) -> HttpResponse:
        text = OUTCOMES[action.outcome]
        if action.outcome in (Outcome.APPLIED, Outcome.REPLAYED):
            messages.success(request, f"{VERB_LABELS[verb.name]}: {text}")
            response = HttpResponseRedirect(self._object_url(object_id))
            response.status_code = HTTPStatus.SEE_OTHER
            return response
        status = STATUSES.get(action.outcome, HTTPStatus.CONFLICT)
        return self._page(request, verb, object_id, error=str(text), status=status, action=action)

    def _page(
        self,
        request: HttpRequest,
        verb: Verb,
        object_id: str,
        *,
        error: str | None = None,
        status: HTTPStatus = HTTPStatus.OK,
        seen: Seen | None = None,
        action: Action | None = None,
    ) -> HttpResponse:
        """Show the facts as they are now, and the form unless an action was refused or the verb does not apply."""
        obj: Any = self.get_object(request, object_id)
        if obj is None and action is None:
            raise Http404
        refusal = None if obj is None else why_not(verb, self.state_of(obj))
        if seen is None and obj is not None:
            seen = Seen.now(request, verb, object_id, obj.version)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": VERB_LABELS[verb.name],
            "original": obj,
            "object_url": None if obj is None else self._object_url(object_id),
            "facts": [] if obj is None else self.facts_of(obj),
            "consequence": CONSEQUENCES[verb.name],
            "needs_typing": verb.level >= TYPED_LEVEL,
            "form": seen is not None and refusal is None and action is None,
            "refusal": refusal,
            "error": error,
            "action": action,
            "seen": None if seen is None else seen.sign(),
            "reason": request.POST.get("reason", ""),
            "ticket": request.POST.get("ticket", ""),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/pgqueue/confirm.html", context, status=status)
