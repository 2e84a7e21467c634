"""Bulk actions: frozen sets of jobs, and what came of each."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _


class BulkAction(models.Model):
    """One verb on a frozen set of jobs. Goes from frozen to running to done, or is stopped between two chunks.

    `stopped_by` is empty where a worker stopped it: whoever started it may no longer do what it does.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    spread_seconds = models.FloatField(default=0)
    size = models.IntegerField()
    capped = models.BooleanField(default=False)
    state = models.TextField(default="frozen")
    verb = models.TextField()
    actor_id = models.TextField(null=True)
    actor_name = models.TextField()
    started_by_id = models.TextField(null=True)
    started_by_name = models.TextField(default="")
    stopped_by = models.TextField(default="")
    filter = models.TextField()
    reason = models.TextField(default="")
    ticket = models.TextField(default="")

    class Meta:
        verbose_name = _("bulk action")
        verbose_name_plural = _("bulk actions")
        default_permissions = ("view",)
        permissions = (("bulk_job", _("Can act on many jobs at once")),)
        indexes = (
            models.Index(models.F("created_at").desc(), models.F("id").desc(), name="pgqueue_bulk_newest"),
            models.Index(fields=["started_at"], name="pgqueue_bulk_running", condition=models.Q(state="running")),
        )
        constraints = (
            models.CheckConstraint(
                name="pgqueue_bulk_state_known",
                condition=models.Q(state__in=["frozen", "running", "stopped", "done"]),
            ),
        )

    def __str__(self) -> str:
        return f"{self.verb} {str(self.pk)[:8]}"


class BulkItem(models.Model):
    """One job of a frozen set, with the version that was seen."""

    id = models.BigAutoField(primary_key=True)
    bulk_id = models.UUIDField()
    job_id = models.BigIntegerField()
    version_seen = models.BigIntegerField()
    version_found = models.BigIntegerField(null=True)
    audit_id = models.BigIntegerField(null=True)
    position = models.IntegerField()
    outcome = models.TextField(null=True)
    state_found = models.TextField(null=True)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["bulk_id", "job_id"], name="pgqueue_bulkitem_once"),)
