"""A job and what belongs to it.

Columns are ordered by size, and those that a claim or an ending changes stand together in the middle: the write-ahead
log of an update leaves out what stays the same before and behind. An ending leaves its worker's id where it was, one
column further (`settled_by`).
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from ..states import FINAL, WAITING, Lane, Recovery, Stage, State

_waiting = [state.value for state in WAITING]
_unfinished = [state.value for state in State if state not in FINAL]


def _named(field: str) -> Q:
    return Q(**{f"{field}__isnull": False})


class Job(models.Model):
    """One unit of work. No foreign keys: nothing cascades, and nothing locks a parent row.

    What must hold for every row, `pgqueue_check_job` says (`beyond_models`).
    """

    id = models.BigAutoField(primary_key=True)
    parent_id = models.BigIntegerField(null=True, blank=True)
    cloned_from_id = models.BigIntegerField(null=True, blank=True)
    schedule_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()
    run_at = models.DateTimeField()
    fence = models.BigIntegerField(default=0)
    worker_id = models.BigIntegerField(null=True, blank=True)
    settled_by = models.BigIntegerField(null=True, blank=True)
    claimed_at = models.DateTimeField(null=True, blank=True)
    version = models.BigIntegerField(default=1)
    lease_until = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    probe_at = models.DateTimeField(null=True, blank=True)
    replaced_at = models.DateTimeField(null=True, blank=True)
    replay_until = models.DateTimeField(null=True, blank=True)
    snoozed_until = models.DateTimeField(null=True, blank=True)
    purged_at = models.DateTimeField(null=True, blank=True)
    """Since then it has no arguments, result and texts of errors, and is never run again."""
    compensated_at = models.DateTimeField(null=True, blank=True)
    """When another job was enqueued to undo what it did; it is never requeued."""
    attempts = models.SmallIntegerField(default=0)
    state = models.TextField(default=State.PENDING.value)
    max_run_seconds = models.IntegerField(null=True, blank=True)
    priority = models.SmallIntegerField(default=0)
    lane = models.SmallIntegerField(default=Lane.PLAIN.value)
    max_attempts = models.SmallIntegerField()
    lease_losses = models.SmallIntegerField(default=0)
    unknown_effects = models.SmallIntegerField(default=0)
    probes = models.SmallIntegerField(db_default=0)
    blocks_key = models.BooleanField(null=True)
    """While this job is unfinished, younger ones of its shard key wait; null does not."""
    until_started = models.BooleanField(null=True)
    """Its unique key keeps others out until it is first claimed; null is until it has ended."""
    queue = models.TextField()
    task = models.TextField()
    recovery = models.TextField(default=Recovery.UNDECLARED.value)
    stage = models.TextField(default=Stage.NOT_CALLED.value)
    held_from = models.TextField(null=True, blank=True)
    tenant = models.TextField(null=True, blank=True)
    shard_key = models.TextField(null=True, blank=True)
    resource = models.TextField(null=True, blank=True)
    unique_key = models.TextField(null=True, blank=True)
    operation_key = models.TextField(null=True, blank=True)
    on_dead = models.TextField(null=True, blank=True)
    taken_by = models.TextField(null=True, blank=True)
    last_error_class = models.TextField(null=True, blank=True)
    last_error = models.TextField(null=True, blank=True)

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = (
            ("requeue_job", _("Can requeue dead and cancelled jobs")),
            ("cancel_job", _("Can cancel jobs and ask running ones to stop")),
            ("discard_job", _("Can give up jobs")),
            ("hold_job", _("Can hold and unhold single jobs")),
            ("reschedule_job", _("Can make waiting jobs due at another time")),
            ("reprioritise_job", _("Can change the priority and the queue of waiting jobs")),
            ("break_lease", _("Can break the lease of a running job")),
            ("view_job_args", _("Can view job arguments")),
            ("view_job_errors", _("Can view error messages and tracebacks of jobs")),
            ("export_job", _("Can export lists of jobs")),
            ("purge_job", _("Can purge ended jobs of arguments, results and texts of errors")),
            ("clone_job", _("Can run ended jobs again as new ones")),
            ("triage_unknown", _("Can take, hand over, snooze and probe jobs with an unknown outcome")),
            ("resolve_unknown", _("Can reconcile unknown outcomes")),
        )
        indexes = (
            models.Index(
                "lane",
                "queue",
                # Negated, not descending: one comparison of rows steps from a group to the next.
                models.F("priority") * -1,
                "task",
                "run_at",
                "id",
                name="pgqueue_job_waiting",
                condition=Q(state__in=_waiting, lane__in=[Lane.PLAIN.value, Lane.ALONE.value, Lane.ISOLATED.value]),
            ),
            models.Index(
                "queue",
                models.F("priority").desc(),
                Coalesce("tenant", Value("")),
                Coalesce("shard_key", Value("")),
                "task",
                Coalesce("resource", Value("")),
                "run_at",
                "id",
                name="pgqueue_job_laned",
                # Always true, and said by the claim alone: `look`, which reads by time, must not read by this one.
                condition=Q(state__in=_waiting, lane=Lane.LANED.value, priority__gte=-100),
            ),
            models.Index(
                fields=["queue", "run_at"],
                name="pgqueue_job_laned_due",
                # Always true as well, and said by `look` alone: a claim would find it cheaper than it is.
                condition=Q(state__in=_waiting, lane=Lane.LANED.value, priority__lte=100),
            ),
            models.Index(
                fields=["queue", "shard_key", "id"],
                name="pgqueue_job_blocking",
                condition=Q(blocks_key=True, state__in=_unfinished),
            ),
            models.Index(fields=["worker_id"], name="pgqueue_job_running", condition=Q(state=State.RUNNING.value)),
            models.Index(fields=["probe_at", "id"], name="pgqueue_job_unknown", condition=Q(state=State.UNKNOWN.value)),
            models.Index(
                "state",
                models.F("id").desc(),
                name="pgqueue_job_ended",
                condition=Q(state__in=[State.DEAD.value, State.CANCELLED.value, State.PAUSED.value]),
            ),
            models.Index(
                "last_error_class",
                models.F("id").desc(),
                name="pgqueue_job_dead",
                condition=Q(state=State.DEAD.value),
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["queue", "shard_key"],
                name="pgqueue_job_one_per_key",
                condition=Q(state=State.RUNNING.value, shard_key__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["task", "unique_key"],
                name="pgqueue_job_unique_until_finished",
                condition=_named("unique_key") & Q(until_started__isnull=True, state__in=_unfinished),
            ),
            models.UniqueConstraint(
                fields=["task", "unique_key"],
                name="pgqueue_job_unique_until_started",
                # A claim draws a fence, so that no way back to pending collides.
                condition=Q(until_started=True, fence=0, state__in=[State.PENDING.value, State.PAUSED.value]),
            ),
        )

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"

    @property
    def operation(self) -> str:
        """Key of the job's business operation, the same on every attempt."""
        return self.operation_key or f"job:{self.pk}"


class JobPayload(models.Model):
    """Arguments of a job; a row only when there are some. Changed only by an enqueue that replaces a waiting job's."""

    job_id = models.BigIntegerField(primary_key=True)
    args: Any = models.JSONField(null=True)
    kwargs: Any = models.JSONField(null=True)
    trace: Any = models.JSONField(null=True)

    class Meta:
        default_permissions = ()


class JobResult(models.Model):
    """What a job returned; a row only when that was not None."""

    job_id = models.BigIntegerField(primary_key=True)
    value: Any = models.JSONField()

    class Meta:
        default_permissions = ()


class Attempt(models.Model):
    """One claim's execution. A first attempt that simply succeeds is told by its job row alone."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField()
    fence = models.BigIntegerField()
    worker_id = models.BigIntegerField(null=True)
    claimed_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    number = models.SmallIntegerField()
    outcome = models.TextField()
    stage = models.TextField(default=Stage.NOT_CALLED.value)
    failure_class = models.TextField(null=True)
    error_class = models.TextField(null=True)
    message = models.TextField(null=True)
    traceback = models.TextField(null=True)
    evidence: Any = models.JSONField(null=True)

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["job_id", "fence"], name="pgqueue_attempt_once"),)
