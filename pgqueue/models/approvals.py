"""What one person asked for and another one has to approve."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _


class ApprovalRequest(models.Model):
    """A verb on a target as one person saw it; goes from waiting to approved or declined, or is left to expire.

    Plain values instead of foreign keys, as in the audit log. `queue` and `task` are the target's at that time.
    """

    id = models.BigAutoField(primary_key=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True)
    version = models.BigIntegerField(default=1)
    version_seen = models.BigIntegerField(null=True)
    state = models.TextField(default="waiting")
    verb = models.TextField()
    target_kind = models.TextField()
    target_id = models.TextField()
    queue = models.TextField(null=True)
    task = models.TextField(null=True)
    asked_by_id = models.TextField(null=True)
    asked_by = models.TextField()
    decided_by = models.TextField(null=True)
    reason = models.TextField()
    ticket = models.TextField(default="", blank=True)
    idempotency_key = models.TextField(null=True)
    params: Any = models.JSONField(default=dict)

    class Meta:
        verbose_name = _("approval")
        verbose_name_plural = _("approvals")
        default_permissions = ("view",)
        permissions = (("approve_action", _("Can approve and decline what others ask for")),)
        indexes = (
            models.Index(fields=["target_kind", "target_id"], name="pgqueue_approval_target"),
            models.Index(fields=["expires_at"], name="pgqueue_approval_waiting", condition=models.Q(state="waiting")),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["idempotency_key"],
                name="pgqueue_approval_once",
                condition=models.Q(idempotency_key__isnull=False),
            ),
            models.CheckConstraint(
                name="pgqueue_approval_state_known",
                condition=models.Q(state__in=["waiting", "approved", "declined"]),
            ),
        )

    def __str__(self) -> str:
        return f"{self.verb} {self.target_kind} {self.target_id}"
