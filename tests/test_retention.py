"""Finished jobs are deleted when their retention is over, with all that belongs to them, and on record."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db import DataError

from pgqueue import retention as retention_module
from pgqueue.actors import Actor
from pgqueue.models import Attempt, Effect, Job, JobPayload, JobResult, OperationKey, OperatorAction, Probe
from pgqueue.retention import sweep
from tests.factories import (
    ApprovalRequestFactory,
    AttemptFactory,
    EffectFactory,
    JobFactory,
    JobPayloadFactory,
    OperationKeyFactory,
    from_now,
)

pytestmark = pytest.mark.django_db
DAY = 86_400.0


@pytest.fixture(autouse=True)
def retention(settings: Any) -> None:
    """A week for what went well, a month for what did not."""
    settings.PGQUEUE = {"RETENTION_SECONDS": 7 * DAY, "DEAD_RETENTION_SECONDS": 30 * DAY}


def prune(**options: Any) -> str:
    out = StringIO()
    call_command("pgqueue_prune", stdout=out, actor="cron", **options)
    return out.getvalue().strip()


def ended(days: float, **traits: Any) -> Job:
    return JobFactory(**traits, finished_at=from_now(-days * DAY), created_at=from_now(-100 * DAY))


def test_what_is_old_enough_is_deleted_and_nothing_else() -> None:
    gone = [ended(8, succeeded=True), ended(8, cancelled=True), ended(31, dead=True)]
    kept = [ended(6, succeeded=True), ended(6, cancelled=True), ended(29, dead=True)]
    kept += [ended(99, dead=True, stage="outcome_unknown")]
    kept += [JobFactory(created_at=from_now(-99 * DAY), **each) for each in ({}, {"running": True}, {"unknown": True})]
    assert prune() == f"{len(gone)} of {len(gone) + len(kept)} jobs were deleted"
    assert list(Job.objects.order_by("id")) == kept


def test_all_that_belongs_to_a_job_goes_with_it_but_its_spent_key() -> None:
    for job in (ended(8, succeeded=True), JobFactory()):
        JobPayloadFactory(job_id=job.pk)
        JobResult.objects.create(job_id=job.pk, value=1)
        AttemptFactory(job_id=job.pk)
        EffectFactory(job_id=job.pk, past=True)
        Probe.objects.create(job_id=job.pk, fence=1, worker_id=1, asked_at=from_now(0), effect="charge")
        ApprovalRequestFactory(about=job, declined=True)
        ApprovalRequestFactory(about=job, expired=True)
        ApprovalRequestFactory(about=job)
        OperationKeyFactory(job_id=job.pk, key=f"order:{job.pk}")
    prune()
    for model in (JobPayload, JobResult, Attempt, Effect, Probe):
        assert list(model.objects.values_list("job_id", flat=True)) == [job.pk], model
    assert OperationKey.objects.count() == 2


def test_a_sweep_goes_on_behind_what_it_keeps_and_its_batches_share_an_audit_row() -> None:
    for _ in range(3):
        JobFactory()
        ended(8, succeeded=True)
    assert prune(batch=1) == "3 of 6 jobs were deleted"
    rows = OperatorAction.objects.values_list("verb", "actor_name", "reason", "facts")
    assert list(rows.order_by("id")) == [("prune", "cron", "retention", {"deleted": deleted}) for deleted in (1, 2)]
    assert prune(batch=2) == "0 of 3 jobs were deleted"
    assert OperatorAction.objects.count() == 2


def test_a_long_sweep_is_put_on_record_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "RECORD_SECONDS", 0.0)
    for _ in range(3):
        ended(8, succeeded=True)
    prune(batch=1)
    assert list(OperatorAction.objects.values_list("facts", flat=True)) == 3 * [{"deleted": 1}]


def test_what_a_sweep_deleted_before_it_broke_off_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = ended(8, succeeded=True), [ended(8, succeeded=True) for _ in range(3)][-1]
    real = retention_module.prune

    def prune_until_the_last(alias: str, **params: Any) -> Any:
        if params["after_id"] >= last.pk - 1:
            raise KeyboardInterrupt
        return real(alias, **params)

    monkeypatch.setattr(retention_module, "prune", prune_until_the_last)
    with pytest.raises(KeyboardInterrupt):
        prune(batch=1)
    assert list(Job.objects.all()) == [last]
    deleted = OperatorAction.objects.order_by("id").values_list("facts__deleted", flat=True)
    assert list(deleted) == [1, last.pk - first.pk - 1]


def test_the_report_of_the_projects_checks_is_not_written() -> None:
    """A scheduler mails what is written."""
    assert not load_command_class("pgqueue", "pgqueue_prune").requires_system_checks


def test_a_wrong_setting_is_named_all_the_same(settings: Any) -> None:
    settings.PGQUEUE = {"RETENTION_SECOND": DAY}
    with pytest.raises(CommandError, match="RETENTION_SECOND"):
        prune()


def test_nothing_is_deleted_that_cannot_be_put_on_record() -> None:
    ended(8, succeeded=True)
    with pytest.raises(DataError):
        sweep(actor=Actor(id="\0", name="cron"), reason="retention", most_seconds=60.0)
    assert Job.objects.count() == 1


def test_a_sweep_stops_when_its_time_is_over() -> None:
    ended(8, succeeded=True)
    with pytest.raises(CommandError, match="run it again") as raised:
        prune(most_seconds=0)
    assert raised.value.returncode == 3
    assert Job.objects.count() == 1


def test_without_a_retention_nothing_is_deleted(settings: Any) -> None:
    settings.PGQUEUE = {}
    ended(999, succeeded=True)
    with pytest.raises(CommandError, match="kept for ever"):
        prune()
    settings.PGQUEUE = {"DEAD_RETENTION_SECONDS": DAY}
    prune()
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_job_that_somebody_holds_is_passed_over(open_connection: Callable[[], Any]) -> None:
    held, free = ended(8, succeeded=True), ended(8, succeeded=True)
    other = open_connection()
    other.autocommit = False
    other.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [held.pk])
    assert prune() == "1 of 2 jobs were deleted"
    assert list(Job.objects.all()) == [held]
    assert free.pk != held.pk
