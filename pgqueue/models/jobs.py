"""A job and what belongs to it. Columns are ordered by size: eight bytes, then two, then text."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from ..states import FINAL, STORED, WAITING, Lane, Recovery, Stage, State

_waiting = [state.value for state in WAITING]
_unfinished = [state.value for state in State if state not in FINAL]
_final = [state.value for state in FINAL]


def one_of(field: str, words: type[State] | type[Stage] | type[Recovery]) -> Q:
    return Q(**{f"{field}__in": [word.value for word in words]})


def _named(field: str) -> Q:
    return Q(**{f"{field}__isnull": False})


def exactly_when(left: Q, right: Q) -> Q:
    return (left & right) | (~left & ~right)


class Job(models.Model):
    """One unit of work. No foreign keys: nothing cascades, and nothing locks a parent row."""

    id = models.BigAutoField(primary_key=True)
    parent_id = models.BigIntegerField(null=True, blank=True)
    cloned_from_id = models.BigIntegerField(null=True, blank=True)
    schedule_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()
    run_at = models.DateTimeField()
    worker_id = models.BigIntegerField(null=True, blank=True)
    settled_by = models.BigIntegerField(null=True, blank=True)
    fence = models.BigIntegerField(default=0)
    version = models.BigIntegerField(default=1)
    lease_until = models.DateTimeField(null=True, blank=True)
    claimed_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    probe_at = models.DateTimeField(null=True, blank=True)
    replaced_at = models.DateTimeField(null=True, blank=True)
    replay_until = models.DateTimeField(null=True, blank=True)
    snoozed_until = models.DateTimeField(null=True, blank=True)
    max_run_seconds = models.IntegerField(null=True, blank=True)
    priority = models.SmallIntegerField(default=0)
    lane = models.SmallIntegerField(default=Lane.PLAIN.value)
    attempts = models.SmallIntegerField(default=0)
    max_attempts = models.SmallIntegerField()
    lease_losses = models.SmallIntegerField(default=0)
    unknown_effects = models.SmallIntegerField(default=0)
    blocks_key = models.BooleanField(null=True)
    """While this job is unfinished, younger ones of its shard key wait; null does not."""
    until_started = models.BooleanField(null=True)
    """Its unique key keeps others out until it is first claimed; null is until it has ended."""
    probes = models.SmallIntegerField(db_default=0)
    state = models.TextField(default=State.PENDING.value)
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
            ("export_job", _("Can export lists of jobs")),
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
                condition=Q(state__in=_waiting, lane__in=[Lane.PLAIN.value, Lane.ALONE.value]),
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
            models.CheckConstraint(
                name="pgqueue_job_until_started_shape", condition=Q(until_started__isnull=True) | _named("unique_key")
            ),
            models.CheckConstraint(name="pgqueue_job_state_known", condition=one_of("state", State)),
            models.CheckConstraint(name="pgqueue_job_stage_known", condition=one_of("stage", Stage)),
            models.CheckConstraint(name="pgqueue_job_recovery_known", condition=one_of("recovery", Recovery)),
            models.CheckConstraint(
                name="pgqueue_job_running_leased",
                condition=exactly_when(Q(state=State.RUNNING.value), Q(worker_id__isnull=False))
                & exactly_when(Q(state=State.RUNNING.value), Q(lease_until__isnull=False)),
            ),
            models.CheckConstraint(
                name="pgqueue_job_final_dated",
                condition=exactly_when(Q(state__in=_final), Q(finished_at__isnull=False)),
            ),
            models.CheckConstraint(
                name="pgqueue_job_paused_shape",
                condition=exactly_when(Q(state=State.PAUSED.value), Q(held_from__isnull=False))
                & (Q(held_from__isnull=True) | Q(held_from__in=_waiting)),
            ),
            models.CheckConstraint(
                name="pgqueue_job_probe_shape",
                condition=Q(probe_at__isnull=True) | Q(state=State.UNKNOWN.value),
            ),
            models.CheckConstraint(
                name="pgqueue_job_no_final_unknown",
                condition=~(Q(state__in=_final) & Q(unknown_effects__gt=0)),
            ),
            models.CheckConstraint(
                name="pgqueue_job_unknown_staged",
                condition=exactly_when(Q(stage=Stage.OUTCOME_UNKNOWN.value), Q(unknown_effects__gt=0))
                | Q(state=State.DEAD.value, stage=Stage.OUTCOME_UNKNOWN.value),
            ),
            models.CheckConstraint(
                name="pgqueue_job_no_blind_replay",
                condition=~(Q(state__in=_waiting) & Q(unknown_effects__gt=0) & ~Q(recovery=Recovery.IDEMPOTENT.value)),
            ),
            models.CheckConstraint(
                name="pgqueue_job_attempts_range",
                condition=Q(attempts__gte=0, attempts__lte=models.F("max_attempts"), lease_losses__gte=0),
            ),
            models.CheckConstraint(name="pgqueue_job_unknown_counted", condition=Q(unknown_effects__gte=0)),
            models.CheckConstraint(
                name="pgqueue_job_priority_range", condition=Q(priority__gte=-100, priority__lte=100)
            ),
            models.CheckConstraint(name="pgqueue_job_lane_known", condition=Q(lane__in=[int(lane) for lane in STORED])),
            models.CheckConstraint(
                name="pgqueue_job_lane_shape",
                condition=exactly_when(Q(lane=Lane.ALONE.value), Q(lease_losses__gt=0))
                & ~(Q(lane=Lane.PLAIN.value) & (_named("shard_key") | _named("tenant") | _named("resource"))),
            ),
            models.CheckConstraint(
                name="pgqueue_job_blocks_key_shape", condition=Q(blocks_key__isnull=True) | _named("shard_key")
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
