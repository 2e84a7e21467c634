"""What only the console shows: figures by the minute, and pages that are no table's."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from .jobs import Job


class Numbers(ArrayField):
    """An array for statements of our own: the app that Django 6 demands for an `ArrayField` brings lookups only."""

    def check(self, **kwargs: Any) -> list[Any]:
        """Leave out that `django.contrib.postgres` is not installed."""
        return [message for message in super().check(**kwargs) if message.id != "postgres.E005"]

    def deconstruct(self) -> Any:
        """Be an `ArrayField` in migrations."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.contrib.postgres.fields.ArrayField", args, kwargs


class MinuteStat(models.Model):
    """What workers ended within one minute: how many, and how long they waited and ran, as histograms.

    Bucket 0 counts up to a millisecond, every further one twice as long as the one before. Histograms of several
    workers and minutes add up; percentiles would not.
    """

    id = models.BigAutoField(primary_key=True)
    minute = models.DateTimeField()
    jobs = models.IntegerField()
    queue = models.TextField()
    task = models.TextField()
    outcome = models.TextField()
    error = models.TextField(default="")
    waits: Any = Numbers(models.IntegerField())
    runs: Any = Numbers(models.IntegerField())

    class Meta:
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=["minute", "queue", "task", "outcome", "error"], name="pgqueue_minutestat_once"
            ),
        )


class Overview(MinuteStat):
    """The page that answers whether anything is on fire.

    A proxy, because whatever walks all models, such as `dumpdata`, reads the table of each that is none.
    """

    class Meta:
        proxy = True
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
        default_permissions = ("view",)


class Reconcile(Job):
    """Jobs whose outcome is unknown, as the inbox shows them."""

    class Meta:
        proxy = True
        verbose_name = _("unknown outcome")
        verbose_name_plural = _("reconcile")
        default_permissions = ("view",)
