"""What every page of the console shares: nothing can be added, edited or deleted, and nothing is counted to the end."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html

from ..protocol.connecting import job_alias

COUNTED_AT_MOST = 10_000


class CappedPaginator(Paginator):
    """Counts no further than `COUNTED_AT_MOST`: a list of ten million rows must open at once."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, or the cap."""
        rows: Any = self.object_list
        return int(rows[:COUNTED_AT_MOST].count())


class OneOrderChangeList(ChangeList):
    """Has the one order of its admin, whatever the URL asks for: no other has an index."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the admin's ordering."""
        return list(self.model_admin.ordering or ())


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows where they are written, and changes none."""

    change_list_template = "admin/pgqueue/change_list.html"
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    sortable_by = ()
    actions = None
    url_lookups: tuple[str, ...] = ()
    """What the list may be asked for in its URL. Django allows every column, and so scans of the table."""
    empty_text: Any
    """What an empty list says: how rows come to be there."""

    class Media:
        css = {"all": ["pgqueue/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read from the database that jobs are written to, and bring its time along: ages are told by its clock."""
        rows: QuerySet[Any] = super().get_queryset(request).using(job_alias()).annotate(now=Now())
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that cannot be sorted by its URL."""
        return OneOrderChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow what is listed in `url_lookups`."""
        return lookup in self.url_lookups

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Say what an empty list means, and where a capped one ends."""
        told = {"empty_text": self.empty_text, "counted_at_most": COUNTED_AT_MOST}
        return super().changelist_view(request, {**told, **(extra_context or {})})

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

    def link(self, model: type[Model], pk: Any, text: Any) -> Any:
        """Return a link to an object, or the mere text where this site does not show its model."""
        if not self.admin_site.is_registered(model):
            return text
        return format_html('<a href="{}">{}</a>', self.page_url(model, "change", pk), text)
