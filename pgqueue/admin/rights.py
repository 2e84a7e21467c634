"""What somebody may read beside the rows themselves: arguments and results, texts of errors, reasons of operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..verbs import PRIVATE_PARAMS

HIDDEN = _("hidden")


@dataclass(frozen=True, slots=True)
class Reader:
    """What the user of a request may read."""

    arguments: bool
    """Arguments and results of jobs, and what effects answered."""
    errors: bool
    """Messages and tracebacks of errors; their classes are open to every viewer."""
    reasons: bool
    """What operators wrote: reasons and tickets."""

    @classmethod
    def of(cls, request: HttpRequest) -> Reader:
        """Return what the user of a request may read."""
        may = request.user.has_perm
        return cls(
            arguments=may("pgqueue.view_job_args"),
            errors=may("pgqueue.view_job_errors"),
            reasons=may("pgqueue.view_operatoraction"),
        )

    def params(self, given: Any) -> Any:
        """Return a verb's params, with those hidden that only some may read."""
        if self.arguments or not isinstance(given, Mapping):  # What a hand wrote may be anything.
            return given
        return {name: str(HIDDEN) if name in PRIVATE_PARAMS else value for name, value in given.items()}
