"""What the console's URLs can be asked with: no text is taken that the database cannot hold, or that is endless."""

from __future__ import annotations

import re

from django.http import QueryDict
from django.utils.translation import gettext as _

LONGEST_VALUE = 4_000
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def strangeness(query: QueryDict) -> str | None:
    """Return what is wrong with a query that no link and no form of the console makes; None where nothing is."""
    for name, values in query.lists():
        for text in (name, *values):
            if len(text) > LONGEST_VALUE:
                return _("A parameter of the address is longer than %(longest)d characters.") % {
                    "longest": LONGEST_VALUE
                }
            if _UNSTORABLE.search(text):
                return _("A parameter of the address has characters that no row can have.")
    return None
