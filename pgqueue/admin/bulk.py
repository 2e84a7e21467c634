"""One verb on many jobs: tick rows or take all that match, freeze the set, and go on to its page."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from ..bulk import BULK_PERMISSION, bulk_verbs, freeze
from ..models import BulkAction
from ..verbs import VERBS, Verb
from .search import understand
from .verbs import VerbAdmin
from .words import VERB_LABELS


def may_bulk(request: HttpRequest, actor: Any, verb: Verb) -> bool:
    """Say whether somebody may use a verb on many jobs."""
    return actor.may(verb) and request.user.has_perm(f"pgqueue.{BULK_PERMISSION}")


class BulkVerbs(VerbAdmin):
    """An admin of jobs whose verbs can be used on many rows; every set is frozen before anybody confirms it."""

    actions_on_bottom = False

    def get_urls(self) -> list[URLPattern]:
        """Add the address that "all that match" is posted to."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_everything"
        return [path("everything/", self.unwrapped(self.everything_view), name=name), *super().get_urls()]

    def is_unread(self, request: HttpRequest) -> bool:
        """Return whether the list is only asked for what it would find."""
        found = request.resolver_match
        return super().is_unread(request) or (
            found is not None and found.url_name == f"{self.opts.app_label}_{self.opts.model_name}_everything"
        )

    def verbs_of(self, request: HttpRequest) -> list[Verb]:
        """Return the verbs that this user may use on many jobs, where the site shows bulk actions."""
        actor = self.actor_of(request)
        if not self.admin_site.is_registered(BulkAction):
            return []
        return [verb for verb in bulk_verbs() if may_bulk(request, actor, verb)]

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Offer the verbs on the list; each leads to a frozen set's page and does nothing yet.

        Django 6.1 asks for a job's own page too, where every verb has its link.
        """
        if action_location is not None and action_location.name == "CHANGE_FORM":
            return {}
        return {
            verb.name: (partial(_freeze_ticked, verb.name), verb.name, f"{VERB_LABELS[verb.name]}…")
            for verb in self.verbs_of(request)
        }

    def everything(self, request: HttpRequest) -> dict[str, Any] | None:
        """Return the form that takes all that match; None for who may use none."""
        verbs = self.verbs_of(request)
        if not verbs:
            return None
        url = reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_everything")
        asked = request.GET.urlencode()
        return {
            "url": f"{url}?{asked}" if asked else url,
            "verbs": [{"name": verb.name, "label": VERB_LABELS[verb.name]} for verb in verbs],
        }

    def everything_view(self, request: HttpRequest) -> HttpResponse:
        """Freeze all jobs that the list's filter finds, on every page, up to the cap."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        verb = request.POST.get("verb", "")
        if verb not in {each.name for each in self.verbs_of(request)}:
            raise PermissionDenied
        back = self.page_url(self.model, "changelist") + f"?{request.GET.urlencode()}"
        changelist: Any = self.get_changelist_instance(request)
        search = understand(request.GET.get("q", ""), alias="default", may_see_args=True)
        if search.problems or changelist.problems:
            messages.error(request, _("The search was not understood: nothing was frozen."))
            return HttpResponseRedirect(self.page_url(self.model, "changelist") if changelist.problems else back)
        asked = ", ".join(f"{name}: {value}" for name, value in changelist.params.items() if value)
        return self.frozen(request, verb, changelist.everything(request), asked or _("no filter: every job"))

    def frozen(self, request: HttpRequest, verb: str, rows: QuerySet[Any], asked: str) -> HttpResponse:
        """Freeze rows with the versions they have now and lead to the set's page."""
        id = freeze(verb, rows, actor=self.actor_of(request), filter=asked)
        if id is None:
            messages.warning(request, _("No job matches: nothing was frozen."))
            return HttpResponseRedirect(self.list_url(request), status=HTTPStatus.SEE_OTHER)
        name = f"{self.admin_site.name}:{self.opts.app_label}_bulkaction_change"
        return HttpResponseRedirect(reverse(name, args=[quote(str(id))]), status=HTTPStatus.SEE_OTHER)


def _freeze_ticked(verb: str, of: BulkVerbs, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
    # By their numbers: who acts on what was ticked does not mean whatever else the filter finds by now.
    ticked = _("ticked on the list")
    if VERBS[verb] not in of.verbs_of(request):
        raise PermissionDenied
    return of.frozen(request, verb, rows, ticked)
