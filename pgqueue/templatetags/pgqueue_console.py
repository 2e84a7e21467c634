"""What the console's templates cannot say themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import mark_safe
from django.utils.text import capfirst

register = template.Library()


@register.filter
def labelled(cells: Iterable[Any], headers: Iterable[dict[str, Any]]) -> Iterator[Any]:
    """Give each cell of a list's row its heading: on small screens a row is a card, and the table's head is gone.

    A cell is what Django's admin made: markup that begins with `<td` or `<th`.
    """
    for cell, header in zip(cells, headers, strict=True):
        tag, rest = cell[:3], cell[3:]
        if tag not in ("<td", "<th") or "action-checkbox" in rest.partition(">")[0]:
            yield cell
        else:
            label = format_html(' data-label="{}"', capfirst(header["text"]))
            yield mark_safe(f"{tag}{label}{rest}")
