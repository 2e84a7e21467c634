"""What every page of the console shares: nothing can be added, edited or deleted, and nothing is counted to the end."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from ..protocol.connecting import job_alias

COUNTED_AT_MOST = 10_000


class CappedPaginator(Paginator):
    """Counts no further than `COUNTED_AT_MOST`: a list of ten million rows must open at once."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, or the cap."""
        rows: Any = self.object_list
        return int(rows[:COUNTED_AT_MOST].count())


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows where they are written, and changes none."""

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read from the database that jobs are written to: a replica may lag."""
        return super().get_queryset(request).using(job_alias())

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody adds rows here: jobs are enqueued."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody edits rows here: operators act through verbs."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes rows here."""
        return False
