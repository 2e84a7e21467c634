"""The list as a file: what its filter finds, as far as the cap, asked for by POST and on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, StreamingHttpResponse
from django.urls import URLPattern, path, reverse

from .. import conf
from ..exporting import EXPORT_PERMISSION, FORMATS, MOST_ROWS, pages, record, written
from ..operations import Actor
from ..protocol.connecting import job_alias
from ..protocol.viewing import read_only
from ..states import Outcome
from .base import UNREAD, ReadOnlyAdmin


class ExportedAdmin(ReadOnlyAdmin):
    """An admin whose list can be had as CSV or JSON lines."""

    export_kind: str
    export_columns: tuple[str, ...]

    def columns_for(self, request: HttpRequest) -> tuple[str, ...]:
        """Return what this user may have."""
        return self.export_columns

    def may_export(self, request: HttpRequest) -> bool:
        """Say whether the user may take rows away."""
        return self.has_view_permission(request) and request.user.has_perm(f"pgqueue.{EXPORT_PERMISSION}")

    def exported_beside(self, rows: list[dict[str, Any]], columns: Sequence[str]) -> None:
        """Add columns that are no column of the rows' table, at once for a page of them."""

    def get_urls(self) -> list[URLPattern]:
        """Add the address that a list is exported from."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_export"
        return [path("export/", self.admin_site.admin_view(self.export_view), name=name), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Offer the export to whoever may have it."""
        told: dict[str, Any] = {}
        if self.may_export(request):
            url = reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_export")
            told["export"] = {"url": f"{url}?{request.GET.urlencode()}", "most": f"{MOST_ROWS:,}", "formats": FORMATS}
        return super().changelist_view(request, {**told, **(extra_context or {})})

    def export_view(self, request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
        """Stream what the list's filter finds, newest first or as it is sorted; nothing by GET."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        format = request.POST.get("format", "csv")
        format = format if format in FORMATS else "csv"
        asked = {"filter": request.GET.urlencode(), "format": format}
        actor = Actor.of(request.user)
        if not self.may_export(request):
            record(self.export_kind, actor=actor, asked=asked, outcome=Outcome.FORBIDDEN)
            raise PermissionDenied
        back = self.page_url(self.model, "changelist") + f"?{request.GET.urlencode()}"
        # Its query is wanted, and no page of it.
        setattr(request, UNREAD, True)
        found = self.get_changelist_instance(request)
        if found.problems or not self.is_understood(request):
            return HttpResponseRedirect(self.page_url(self.model, "changelist") if found.problems else back)
        columns = self.columns_for(request)
        record(self.export_kind, actor=actor, asked={**asked, "columns": list(columns)}, outcome=Outcome.APPLIED)
        lines = written(pages(self._reader(request, found.queryset, columns)), columns, format=format)
        answer = StreamingHttpResponse(lines, content_type=FORMATS[format])
        answer["Content-Disposition"] = f'attachment; filename="{self.export_kind}s.{format}"'
        return answer

    def is_understood(self, request: HttpRequest) -> bool:
        """Say whether what is asked for could be read: else nothing is exported rather than everything."""
        return True

    def _reader(self, request: HttpRequest, queryset: Any, columns: Sequence[str]) -> Any:
        order = self.order_of(request)
        own = {field.attname for field in self.model._meta.concrete_fields}
        names = [name for name in columns if name in own]

        def read(last: Mapping[str, Any] | None, size: int) -> list[dict[str, Any]]:
            rows = queryset if last is None else queryset.filter(order.beyond([last[name] for name in order.names]))
            sort = order.apart() if self.sorts_few(request) else order.fields
            with read_only(job_alias(), timeout_seconds=conf.current().console_timeout_seconds):
                page = list(rows.order_by(*sort).values(*{*names, *order.names})[:size])
                self.exported_beside(page, columns)
            return page

        return read
