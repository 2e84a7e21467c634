"""What operators act on beside jobs, and the record of their actions."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..states import Outcome


class Queue(models.Model):
    """A named lane. A queue without a row is active and unlimited; its version counts as 0."""

    name = models.TextField(primary_key=True)
    version = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_until = models.DateTimeField(null=True, blank=True)
    paused_by = models.TextField(null=True, blank=True)
    pause_reason = models.TextField(null=True, blank=True)

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = (("operate_queue", _("Can pause and resume queues")),)

    def __str__(self) -> str:
        return self.name


class Limit(models.Model):
    """What bounds the jobs of one queue, tenant, task or resource. `id` is the kind and the name: `tenant:acme`.

    Version 0 is as the settings declare it; an operator's change stands from then on. `tokens` are those left at
    `refilled_at`, which claims write; neither counts as a change.
    """

    id = models.TextField(primary_key=True)
    version = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    refilled_at = models.DateTimeField(null=True, blank=True)
    tokens = models.FloatField(null=True, blank=True)
    rate_per_second = models.FloatField(null=True, blank=True)
    burst = models.IntegerField(null=True, blank=True)
    max_running = models.IntegerField(null=True, blank=True)
    weight = models.IntegerField(default=1)
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_until = models.DateTimeField(null=True, blank=True)
    paused_by = models.TextField(null=True, blank=True)
    pause_reason = models.TextField(null=True, blank=True)

    class Meta:
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        default_permissions = ("view",)
        permissions = (("operate_limit", _("Can change limits, rates and weights, and pause tenants and tasks")),)
        constraints = (
            models.CheckConstraint(
                name="pgqueue_limit_range",
                condition=(Q(max_running__isnull=True) | Q(max_running__gte=0)) & Q(weight__gte=1, weight__lte=1000),
            ),
            models.CheckConstraint(
                name="pgqueue_limit_rate_shape",
                condition=Q(
                    rate_per_second__isnull=True, burst__isnull=True, tokens__isnull=True, refilled_at__isnull=True
                )
                | Q(rate_per_second__gt=0, burst__gte=1, tokens__isnull=False, refilled_at__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return self.id


class Worker(models.Model):
    """One start of a worker process; a restart is a new row, whatever the host is called.

    `parent_id` names the worker that started this one as its quarantine.
    """

    id = models.BigAutoField(primary_key=True)
    version = models.BigIntegerField(default=1)
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True, blank=True)
    drain_requested_at = models.DateTimeField(null=True, blank=True)
    parent_id = models.BigIntegerField(null=True, blank=True)
    lease_seconds = models.FloatField()
    pid = models.IntegerField()
    slots = models.IntegerField()
    draining = models.BooleanField(default=False)
    host = models.TextField()
    release = models.TextField()
    queues: Any = models.JSONField(null=True)
    excluded_queues: Any = models.JSONField(null=True)
    tasks: Any = models.JSONField()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        permissions = (("operate_worker", _("Can drain and forget workers")),)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}#{self.pk}"


class OperatorAction(models.Model):
    """The audit log: one row for every action and every refusal.

    Plain values instead of foreign keys, so that deleting a user or a job deletes nothing here. A
    trigger refuses UPDATE and DELETE.
    """

    id = models.BigAutoField(primary_key=True)
    created_at = models.DateTimeField()
    version_seen = models.BigIntegerField(null=True)
    version_found = models.BigIntegerField(null=True)
    version_after = models.BigIntegerField(null=True)
    verb = models.TextField()
    target_kind = models.TextField()
    target_id = models.TextField()
    outcome = models.TextField()
    actor_id = models.TextField(null=True)
    actor_name = models.TextField()
    reason = models.TextField()
    ticket = models.TextField(default="", blank=True)
    state_found = models.TextField(null=True)
    idempotency_key = models.TextField(null=True)
    params: Any = models.JSONField(default=dict)
    facts: Any = models.JSONField(default=dict)

    class Meta:
        verbose_name = _("operator action")
        verbose_name_plural = _("operator actions")
        default_permissions = ("view",)
        indexes = (
            models.Index("target_kind", "target_id", models.F("id").desc(), name="pgqueue_action_target"),
            models.Index("actor_id", models.F("id").desc(), name="pgqueue_action_actor"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["idempotency_key"],
                name="pgqueue_action_once",
                condition=Q(outcome=Outcome.APPLIED.value, idempotency_key__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"{self.verb} {self.target_kind} {self.target_id}: {self.outcome}"
