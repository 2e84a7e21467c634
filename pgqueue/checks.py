"""System checks: misconfiguration is told before anything runs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks

from . import conf


@checks.register("pgqueue")
def check_settings(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check the `PGQUEUE` dict (pgqueue.E010)."""
    given = getattr(settings, "PGQUEUE", {})
    return [checks.Error(problem.message, hint=problem.hint, id="pgqueue.E010") for problem in conf.problems(given)]
