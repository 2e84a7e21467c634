"""What every page of the console shares: nothing can be added, edited or deleted, and nothing is counted to the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import django
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import OperationalError
from django.db.models import Model, QuerySet
from django.db.models.functions import Now
from django.forms.widgets import Media, Script
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from .. import conf
from ..protocol.connecting import job_alias
from ..protocol.tolerating import tolerant
from ..protocol.viewing import read_only, took_too_long
from .keyset import SORT, KeysetChangeList, Order, UnreadChangeList
from .queries import strangeness

READING = ("GET", "HEAD")
UNREAD = "_pgqueue_unread"
"""Attribute of a request whose list is not to be read."""
NAVIGATION = (
    "overview",
    "queue",
    "limit",
    "job",
    "reconcile",
    "worker",
    "bulkaction",
    "approvalrequest",
    "operatoraction",
)
"""Models of the navigation bar, in its order."""


class PagePaginator(Paginator):
    """Counts the rows of the page that was read, and no others."""

    @property
    def count(self) -> int:
        """Return how many rows the page has."""
        return len(self.object_list)


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows where they are written, and changes none."""

    change_list_template = "admin/pgqueue/change_list.html"
    change_form_template = "admin/pgqueue/change_form.html"
    paginator = PagePaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    sortable_by = ()
    actions = None
    orders: dict[str, tuple[Any, Order]] = {}
    """Orders that the list can be read in, by their word in the URL, with their labels; the first is the default."""
    url_lookups: tuple[str, ...] = ()
    """What the list may be asked for in its URL. Django allows every column, and so scans of the table."""
    empty_text: Any
    """What an empty list says: how rows come to be there."""

    @property
    def media(self) -> Media:
        """Return the one stylesheet and the one script, and what a theme that resets all styles needs besides."""
        themed = ["pgqueue/unfold.css"] if apps.is_installed("unfold") else []
        script: Any = Script("pgqueue/console.js", defer=True)
        own = Media(css={"all": ["pgqueue/admin.css", *themed]}, js=[script])
        found: Media = super().media + own
        return found

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read from the database that jobs are written to, and bring its time along: ages are told by its clock."""
        rows: QuerySet[Any] = super().get_queryset(request).using(job_alias()).annotate(now=Now())
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that turns pages by key, or one that reads nothing."""
        return UnreadChangeList if self.is_unread(request) else KeysetChangeList

    def is_unread(self, request: HttpRequest) -> bool:
        """Return whether the list is only asked for what it would find."""
        return getattr(request, UNREAD, False)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return what the URL asks for; what no row can have finds nothing rather than everything."""
        problem = strangeness(request.GET)
        if problem is None:
            return super().get_changelist_instance(request)
        request.GET = QueryDict()
        setattr(request, UNREAD, True)
        found: Any = super().get_changelist_instance(request)
        found.problems = (problem,)
        return found

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the object of a primary key. Django would also look by another field that the URL names."""
        return super().get_object(request, object_id)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Offer no action of the site: an action acts on whatever its filter finds, not on what was seen."""
        return {}

    def order_of(self, request: HttpRequest) -> Order:
        """Return the order that the URL asks for, or the default."""
        asked = request.GET.get(SORT, "")
        return (self.orders.get(asked) or next(iter(self.orders.values())))[1]

    def sorts_few(self, request: HttpRequest) -> bool:
        """Say whether the list is of few rows, found by an index of their own."""
        return False

    def read_beside(self, rows: list[Any]) -> list[Any] | None:
        """Read what belongs to the rows of a page, at once; return what the first page lists without having a row."""
        return None

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow what is listed in `url_lookups`."""
        return lookup in self.url_lookups

    def empty_text_for(self, request: HttpRequest) -> Any:
        """Return what an empty list says. Under a filter or a search there may be others."""
        if any(request.GET.get(name) for name in (SEARCH_VAR, *self.url_lookups)):
            return _("Nothing here matches. Clear the search and the filter to see everything.")
        return self.empty_text

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Say what an empty list means."""
        return self.looked(
            request, lambda: super(ReadOnlyAdmin, self).changelist_view(request, self._told(request, extra_context))
        )

    def _told(self, request: HttpRequest, extra_context: dict[str, Any] | None) -> dict[str, Any]:
        asked = request.GET.get(SORT, "")
        return {
            "empty_text": self.empty_text_for(request),
            "title": capfirst(self.opts.verbose_name_plural),
            "orders": [
                {"label": label, "query": self._query_with(request, word), "current": self.order_of(request) is order}
                for word, (label, order) in self.orders.items()
            ]
            if len(self.orders) > 1
            else [],
            "sort": asked,
            **self.page_context(request),
            **(extra_context or {}),
        }

    def _query_with(self, request: HttpRequest, word: str) -> str:
        asked = {name: values for name, values in request.GET.lists() if name not in (SORT, "after", "before")}
        return "?" + urlencode({**asked, SORT: word}, doseq=True)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one row, and where its list was left."""

        def view() -> HttpResponse:
            told = {**self.page_context(request), "list_url": self.list_url(request), **(extra_context or {})}
            return super(ReadOnlyAdmin, self).change_view(request, object_id, form_url, extra_context=told)

        return self.looked(request, view)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Refuse without a look: nobody deletes rows here."""
        raise PermissionDenied

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show Django's log of an object."""
        return self.looked(request, lambda: super(ReadOnlyAdmin, self).history_view(request, object_id, extra_context))

    def looked(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        """Run a view and render its answer; a look writes nothing, and is given up when it takes too long."""
        if request.method not in READING:
            with tolerant(job_alias()):
                answer = view()
                return answer.render() if isinstance(answer, SimpleTemplateResponse) else answer
        return self.bounded(request, view)

    def bounded(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        """Do what `looked` does with a view that only reads, whatever the method."""
        try:
            with read_only(job_alias(), timeout_seconds=conf.current().console_timeout_seconds):
                answer = view()
                return answer.render() if isinstance(answer, SimpleTemplateResponse) else answer
        except OperationalError as error:
            if not took_too_long(error):
                raise
            return self._too_slow(request)

    def _too_slow(self, request: HttpRequest) -> HttpResponse:
        # The frame alone: what was too slow once is not asked again.
        context = {**self.admin_site.each_context(request), **self.frame(request), "opts": self.opts}
        context |= {"media": self.media, "title": self.opts.verbose_name_plural, "list_url": self.list_url(None)}
        context |= {"crumbs": self.crumbs(), "has_filter": bool(self.search_fields or self.list_filter)}
        request.current_app = self.admin_site.name
        template = "admin/pgqueue/too_slow.html"
        return TemplateResponse(request, template, context, status=HTTPStatus.SERVICE_UNAVAILABLE)

    def page_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return what a page shows around its subject; called within the bounded transaction."""
        return self.frame(request)

    def frame(self, request: HttpRequest) -> dict[str, Any]:
        """Return what the frame of every page shows without a query: the navigation, and whose time is told."""
        return {
            "navigation": list(self._navigation(request)),
            "zone": f"{datetime.now(timezone.get_current_timezone()):%Z (UTC%z)}",
            "is_read_only": conf.current().console_read_only,
            "crumbs_are_list": django.VERSION >= (6, 1),
            "crumbs_are_grappellis": apps.is_installed("grappelli"),
            # Unfold has no place above its titles, and shows ours nowhere.
            "frame_in_content": apps.is_installed("unfold"),
        }

    def crumbs(self, *further: tuple[str, Any]) -> list[dict[str, Any]]:
        """Return where a page stands: below the app, this list, and (URL, text) of what comes further down."""
        app = reverse(f"{self.admin_site.name}:app_list", args=[self.opts.app_label])
        name = capfirst(self.opts.verbose_name_plural)
        trail = [(app, self.opts.app_config.verbose_name), (self.list_url(None), name), *further]
        return [{"url": url, "text": text} for url, text in [*trail[:-1], ("", trail[-1][1])]]

    def _navigation(self, request: HttpRequest) -> Any:
        shown = {model._meta.model_name: (model, of) for model, of in self.admin_site._registry.items()}
        for name in NAVIGATION:
            model, of = shown.get(name, (None, None))
            if model is None or of is None or model._meta.app_label != self.opts.app_label:
                continue
            if not of.has_view_permission(request):
                continue
            yield {
                "label": model._meta.verbose_name_plural,
                "url": self.page_url(model, "changelist"),
                "key": name,
                "is_current": model is self.model,
            }

    def list_url(self, request: HttpRequest | None) -> str:
        """Return the list as it was left: with its filters, and on its page."""
        left = None if request is None else request.GET.get("_changelist_filters")
        return self.page_url(self.model, "changelist") + (f"?{left}" if left else "")

    def kept(self, request: HttpRequest) -> dict[str, str]:
        """Return what a URL carries along so that `list_url` knows where the list was left."""
        left = request.GET.get("_changelist_filters")
        return {"_changelist_filters": left} if left else {}

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody adds rows here: jobs are enqueued."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody edits rows here: operators act through verbs."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes rows here."""
        return False

    def page_url(self, model: type[Model], page: str, pk: Any = None, *args: str, **query: Any) -> str:
        """Return the URL of a model's page on this site; every page but `changelist` is one object's."""
        name = f"{self.admin_site.name}:{model._meta.app_label}_{model._meta.model_name}_{page}"
        url = str(reverse(name, args=[] if pk is None else [quote(pk), *args]))
        return f"{url}?{urlencode(query)}" if query else url

    def has_page(self, pk: Any) -> bool:
        """Return whether an object can be looked at: an empty name makes no URL."""
        return str(pk) != ""

    def shows(self, model: type[Model], pk: Any) -> bool:
        """Return whether this site has a page of an object."""
        of: Any = self.admin_site._registry.get(model)
        return of is not None and (not isinstance(of, ReadOnlyAdmin) or of.has_page(pk))

    def link(self, model: type[Model], pk: Any, text: Any) -> Any:
        """Return a link to an object, or the mere text where this site has no page of it."""
        if not self.shows(model, pk):
            return text
        return format_html('<a href="{}">{}</a>', self.page_url(model, "change", pk), text)
