"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PGQueueConfig(AppConfig):
    """Wires the checks; tasks are found when a worker starts."""

    name = "pgqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401  registers the system checks
