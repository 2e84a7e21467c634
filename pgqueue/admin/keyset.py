"""Lists that turn pages by key: the first page and the one nine million rows deep cost the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core import signing
from django.core.exceptions import ValidationError
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch

AFTER, BEFORE, SORT = "after", "before", "sort"
CURSORS = (AFTER, BEFORE)


@dataclass(frozen=True, slots=True)
class Order:
    """An order that a list can be read in; the last field is unique. `fields` carry Django's sign."""

    fields: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the fields without their signs."""
        return tuple(field.lstrip("-") for field in self.fields)

    def reversed(self) -> Order:
        """Return the order backwards."""
        return Order(tuple(field[1:] if field[0] == "-" else f"-{field}" for field in self.fields))

    def apart(self) -> list[Any]:
        """Return the order in words that no index has: the rows are found first, and sorted then.

        With the primary key's order at hand, a planner that takes a few live rows to be spread evenly over ten
        million would walk through all that are newer.
        """
        *before, last = self.fields
        number = F(last.lstrip("-")) + 0
        return [*before, number.desc() if last[0] == "-" else number.asc()]

    def beyond(self, values: Sequence[Any]) -> Q:
        """Return the condition of the rows that come after one with these values."""
        found, same = Q(), Q()
        for field, name, value in zip(self.fields, self.names, values, strict=True):
            found |= same & Q(**{f"{name}__{'lt' if field[0] == '-' else 'gt'}": value})
            same &= Q(**{name: value})
        return found

    def mark(self, row: Any) -> str:
        """Return where a row stands, as a URL carries it."""
        values = [getattr(row, name) for name in self.names]
        plain = [value if isinstance(value, int) else str(value) for value in values]
        return signing.b64_encode(json.dumps(plain).encode()).decode()

    def read(self, cursor: str) -> list[Any] | None:
        """Return the values of a cursor; None for one that is none of this order's."""
        try:
            values = json.loads(signing.b64_decode(cursor.encode()))
            if not isinstance(values, list) or len(values) != len(self.fields):
                return None
            return [_value(name, value) for name, value in zip(self.names, values, strict=True)]
        except (ValueError, TypeError):
            return None


def _value(name: str, value: Any) -> Any:
    if name.endswith("_at"):
        return datetime.fromisoformat(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or "\0" in str(value):
        raise ValueError(name)
    return value


class KeysetChangeList(ChangeList):
    """Reads one page and one row more, and counts nothing."""

    newer_url: str | None = None
    older_url: str | None = None
    problems: tuple[Any, ...] = ()
    """What of the URL could not be understood."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        """Return the rows of the list, in its order, from its beginning."""
        for name in (*CURSORS, PAGE_VAR):
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        self.clear_cursor_url = self.get_query_string()
        return super().get_queryset(request, *args, **kwargs)

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        """Return what is no filter to Django without our own words."""
        found = dict(super().get_filters_params(params))
        for name in (*CURSORS, SORT):
            found.pop(name, None)
        return found

    def url_for_result(self, result: Any) -> str:
        """Return the page of a row. Django shows the cell without a link where there is none."""
        owner: Any = self.model_admin
        if not owner.has_page(result.pk):
            raise NoReverseMatch
        return str(super().url_for_result(result))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order that the URL names among the admin's; no other has an index."""
        owner: Any = self.model_admin
        return list(owner.order_of(request).fields)

    def get_results(self, request: HttpRequest) -> None:
        """Read the page that the URL's cursor asks for."""
        owner: Any = self.model_admin
        order: Order = owner.order_of(request)
        size = self.list_per_page
        backwards = BEFORE in request.GET
        start = order.read(request.GET.get(BEFORE if backwards else AFTER, ""))
        read = order.reversed() if backwards and start is not None else order
        try:
            rows = self.queryset if start is None else self.queryset.filter(read.beyond(start))
        except (ValueError, TypeError, ValidationError):
            # Words where the column holds numbers: no cursor of ours.
            rows, start, read = self.queryset, None, order
        found = list(self._sorted(request, rows, read)[: size + 1])
        more, page = len(found) > size, found[:size]
        if read is not order:
            page.reverse()
        has_newer, has_older = (more, True) if read is not order else (start is not None, more)
        if page and has_newer:
            self.newer_url = self.get_query_string({BEFORE: order.mark(page[0])})
        if page and has_older:
            self.older_url = self.get_query_string({AFTER: order.mark(page[-1])})
        unlisted = owner.read_beside(page)
        if unlisted and not set(CURSORS) & set(request.GET):
            page = sorted([*page, *unlisted], key=str)
        self._tell(request, page)

    def everything(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of all pages."""
        owner: Any = self.model_admin
        return self._sorted(request, self.queryset, owner.order_of(request))

    def _sorted(self, request: HttpRequest, rows: QuerySet[Any], order: Order) -> QuerySet[Any]:
        owner: Any = self.model_admin
        return rows.order_by(*(order.apart() if owner.sorts_few(request) else order.fields))

    def _tell(self, request: HttpRequest, page: Any) -> None:
        self.result_list = page
        self.result_count = self.full_result_count = len(page)
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = self.multi_page = False
        self.paginator = self.model_admin.get_paginator(request, page, self.list_per_page)
        self.is_first_page = not set(CURSORS) & set(request.GET)


class UnreadChangeList(KeysetChangeList):
    """Understands what a list is asked for, and reads none of it."""

    def get_results(self, request: HttpRequest) -> None:
        """Read nothing."""
        self._tell(request, [])
