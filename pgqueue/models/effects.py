"""Calls to the outside world within a job, and the questions about those whose outcome is unknown."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q

from ..states import Stage

_stages = [stage.value for stage in Stage]


def _exactly_when(left: Q, right: Q) -> Q:
    return (left & right) | (~left & ~right)


class Effect(models.Model):
    """One named call to the outside world within a job."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField()
    fence = models.BigIntegerField()
    first_called_at = models.DateTimeField(null=True)
    called_at = models.DateTimeField(null=True)
    deadline_at = models.DateTimeField(null=True)
    replay_until = models.DateTimeField(null=True)
    known_at = models.DateTimeField(null=True)
    confirmed_at = models.DateTimeField(null=True)
    attempt = models.SmallIntegerField()
    name = models.TextField()
    stage = models.TextField(default=Stage.NOT_CALLED.value)
    operation_key = models.TextField()
    remote_reference = models.TextField(null=True)
    settled_by = models.TextField(null=True)
    evidence = models.TextField(null=True)
    result: Any = models.JSONField(null=True)
    earlier_calls: Any = models.JSONField(null=True)
    """Calls before the latest one, oldest first: `called_at`, `fence`, `attempt`, and what `became` of each."""

    class Meta:
        default_permissions = ()
        indexes = (
            models.Index(
                fields=["remote_reference"],
                name="pgqueue_effect_reference",
                condition=Q(remote_reference__isnull=False),
            ),
        )
        constraints = (
            models.UniqueConstraint(fields=["job_id", "name"], name="pgqueue_effect_once"),
            models.CheckConstraint(name="pgqueue_effect_stage_known", condition=Q(stage__in=_stages)),
            models.CheckConstraint(
                name="pgqueue_effect_called_dated",
                condition=_exactly_when(~Q(stage=Stage.NOT_CALLED.value), Q(called_at__isnull=False)),
            ),
        )


class Probe(models.Model):
    """One question about an effect whose outcome is unknown, and its answer; without one it was lost."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField()
    fence = models.BigIntegerField()
    worker_id = models.BigIntegerField()
    asked_at = models.DateTimeField()
    answered_at = models.DateTimeField(null=True)
    effect = models.TextField()
    answer = models.TextField(null=True)
    detail = models.TextField(null=True)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["job_id", "fence"], name="pgqueue_probe_once"),)
