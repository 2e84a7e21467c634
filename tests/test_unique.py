"""Unique keys: one job at a time, the last arguments win, one in a window; by unique indexes, whoever races."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from django.utils import timezone

from pgqueue import enqueue_many, task
from pgqueue.compat import InvalidTask
from pgqueue.exceptions import UniqueKeyBusyError
from pgqueue.models import Job, JobPayload, Window
from pgqueue.operations import Actor, act
from pgqueue.protocol import claiming
from pgqueue.protocol.claiming import claim
from pgqueue.protocol.settling import EndingKind
from pgqueue.states import Lane, Outcome, State
from pgqueue.takeover import take_over_expired
from tests.factories import from_now
from tests.statements.doing import claimant, end, ending, fresh
from tests.testapp.unique_tasks import debounced, throttled, until_finished, until_started

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
ADA = Actor(id="1", name="ada")
TASKS = tuple(one.module_path for one in (debounced, throttled, until_finished, until_started))


def enqueue(one: Any, value: Any = None, *, key: str = "k", **options: Any) -> int:
    return int(one.using(unique_key=key, **options).enqueue(value).id)


def claim_one(session: psycopg.Connection[Any]) -> Any:
    (lease,) = claim(session, claimant(tasks=TASKS), lane=Lane.PLAIN, limit=1)
    return lease


def settle(session: psycopg.Connection[Any], kind: EndingKind, id: int, **facts: Any) -> None:
    end(session, ending(kind, Job.objects.get(id=id), **facts))


def args_of(id: int) -> Any:
    return JobPayload.objects.get(job_id=id).args


@pytest.mark.case("E09")
@pytest.mark.parametrize("one", [until_finished, until_started])
def test_a_second_enqueue_gives_back_the_job_that_waits(one: Any) -> None:
    first = enqueue(one, 1)
    assert enqueue(one, 2) == first
    assert enqueue(one, 2, key="other") != first
    assert args_of(first) == [1]


@pytest.mark.case("E09")
@pytest.mark.parametrize("one", [until_finished, until_started])
def test_while_a_job_runs_its_mode_decides(session: Any, one: Any) -> None:
    first = enqueue(one, 1)
    claim_one(session)
    second = enqueue(one, 2)
    assert (second == first) == (one is until_finished)
    settle(session, EndingKind.COMPLETE, first, run_seconds=0.1)
    assert enqueue(one, 3) != first


@pytest.mark.case("E14")
def test_keys_of_two_tasks_are_two_keys() -> None:
    assert enqueue(until_finished) != enqueue(until_started)
    assert Job.objects.count() == 2


@pytest.mark.case("E15")
def test_a_batch_has_the_existing_job_in_its_place() -> None:
    one = until_finished.using(unique_key="k1")
    two = until_finished.using(unique_key="k2")
    ids = enqueue_many([one.bind(1), until_finished.bind(1), one.bind(2), until_finished.bind(1), two.bind(1)])
    assert ids[2] == ids[0]
    assert len(set(ids)) == 4
    assert list(Job.objects.order_by("id").values_list("unique_key", flat=True)) == ["k1", None, None, "k2"]


# the later call's arguments


def test_a_replacing_enqueue_gives_the_waiting_job_its_arguments_and_time() -> None:
    later = timezone.now() + timedelta(hours=1)
    first = enqueue(debounced, "old", run_after=timezone.now() + timedelta(minutes=1))
    assert enqueue(debounced, "new", run_after=later, priority=5) == first
    job = Job.objects.get()
    assert (args_of(first), job.run_at, job.priority, job.version) == (["new"], later, 5, 2)
    assert job.replaced_at is not None


def test_a_call_without_arguments_replaces_them_too() -> None:
    first = enqueue(debounced, "old")
    debounced.using(unique_key="k").enqueue()
    assert args_of(first) is None


def test_once_it_has_begun_a_new_job_takes_the_place(session: Any) -> None:
    first = enqueue(debounced, "old")
    assert claim_one(session).args == '["old"]'
    second = enqueue(debounced, "new")
    assert second != first
    assert (args_of(first), args_of(second)) == (["old"], ["new"])


@committing
def test_a_claim_that_overtakes_the_commit_runs_the_new_arguments(
    queue_connection: Any, second_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim's snapshot is older than the COMMIT of the replacement, and its look at the row younger."""
    first = enqueue(debounced, "old")
    stale = claiming.load("claim")
    payload = "LEFT JOIN pgqueue_jobpayload AS payload ON payload.job_id = claimed.id"
    assert payload in stale
    old = "LEFT JOIN (SELECT claimed.id AS job_id, '[\"old\"]' AS args, NULL AS kwargs FROM claimed) AS payload"
    frozen = stale.replace(payload, f"{old} ON payload.job_id = claimed.id")
    assert enqueue(debounced, "new") == first
    load = claiming.load
    monkeypatch.setattr(claiming, "load", lambda name: frozen if name == "claim" else load(name))
    assert claim_one(queue_connection).args == '["new"]'


# windows


@pytest.mark.case("E08")
def test_one_enqueue_in_a_window_whatever_becomes_of_its_job(session: Any) -> None:
    first = enqueue(throttled, 1)
    claim_one(session)
    settle(session, EndingKind.COMPLETE, first, run_seconds=0.1)
    assert [enqueue(throttled, number) for number in range(5)] == [first] * 5
    Window.objects.update(ends_at=from_now(-1))
    second = enqueue(throttled, 2)
    assert second != first
    assert enqueue(throttled, 3) == second
    assert Job.objects.count() == 2


# no way back collides


@pytest.mark.case("E06")
@pytest.mark.parametrize("one", [until_finished, until_started])
def test_a_takeover_never_meets_its_twin(session: Any, one: Any) -> None:
    first = enqueue(one, 1)
    claim_one(session)
    others = [enqueue(one, key=f"k{number}") for number in range(5)]
    claim(session, claimant(tasks=TASKS), lane=Lane.PLAIN, limit=5)
    enqueue(one, 2)
    Job.objects.filter(state=State.RUNNING).update(lease_until=from_now(-1))
    assert len(take_over_expired(session)) == 6
    assert {fresh(Job.objects.get(id=id)).state for id in (first, *others)} == {State.RETRYING}


@pytest.mark.case("E07")
@pytest.mark.parametrize("one", [until_finished, until_started])
@pytest.mark.parametrize("kind", [EndingKind.RETRY, EndingKind.RELEASE])
def test_a_retry_and_a_release_never_meet_their_twin(session: Any, one: Any, kind: EndingKind) -> None:
    first = enqueue(one, 1)
    claim_one(session)
    enqueue(one, 2)
    settle(session, kind, first)
    assert Job.objects.get(id=first).state in (State.RETRYING, State.PENDING)


@pytest.mark.case("E12")
def test_a_dead_holder_keeps_the_key_until_its_job_has_run_again(session: Any) -> None:
    first = enqueue(until_finished)
    claim_one(session)
    Job.objects.update(lease_until=from_now(-1))
    take_over_expired(session)
    assert enqueue(until_finished) == first
    (lease,) = claim(session, claimant(tasks=TASKS), lane=Lane.ALONE, limit=1)
    settle(session, EndingKind.COMPLETE, lease.id, run_seconds=0.1)
    assert enqueue(until_finished) != first


@pytest.mark.case("E17")
def test_a_lost_holder_keeps_ten_others_out_as_a_running_one_does(session: Any) -> None:
    first = enqueue(until_finished)
    claim_one(session)
    Job.objects.update(lease_until=from_now(-1))
    assert {enqueue(until_finished) for _ in range(10)} == {first}


@committing
@pytest.mark.parametrize("one", [until_finished, until_started])
def test_a_requeue_that_would_collide_says_so(one: Any) -> None:
    first = enqueue(one)
    assert act("cancel", first, version_seen=1, actor=ADA, reason="why").outcome == Outcome.APPLIED
    second = enqueue(one)
    action = act("requeue", first, version_seen=2, actor=ADA, reason="why")
    assert action.outcome == Outcome.REFUSED_DUPLICATE
    assert Job.objects.get(id=first).state == State.CANCELLED
    act("cancel", second, version_seen=1, actor=ADA, reason="why")
    assert act("requeue", first, version_seen=2, actor=ADA, reason="why").outcome == Outcome.APPLIED


# races


@committing
@pytest.mark.case("E11")
@pytest.mark.parametrize("one", [until_finished, until_started, debounced, throttled])
def test_fifty_at_once_all_get_the_same_job(one: Any) -> None:
    def call(number: int) -> int:
        try:
            return enqueue(one, number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=10) as pool:
        ids = set(pool.map(call, range(50)))
    assert len(ids) == Job.objects.count() == 1


@committing
def test_what_a_snapshot_cannot_see_is_a_clear_error_and_no_job(second_connection: Any) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1")
        second_connection.execute(
            "INSERT INTO pgqueue_job (fence, version, created_at, run_at, priority, lane, attempts, max_attempts,"
            " lease_losses, unknown_effects, state, queue, task, recovery, stage, unique_key)"
            " VALUES (0, 1, now(), now(), 0, 0, 0, 8, 0, 0, 'pending', 'default', %s, 'undeclared', 'not_called', 'k')",
            [until_finished.module_path],
        )
        with pytest.raises((UniqueKeyBusyError, OperationalError)), transaction.atomic():
            enqueue(until_finished)
    assert Job.objects.count() == 1


# what does not fit


def anything() -> None: ...


@pytest.mark.parametrize(
    "options",
    [
        {"on_duplicate": "replace"},
        {"unique_until": "window"},
        {"window_seconds": 5.0},
        {"unique_until": "tomorrow"},
        {"on_duplicate": "double"},
        {"unique_key": "k", "operation_key": "o"},
    ],
    ids=str,
)
def test_options_that_do_not_fit_together_are_refused_where_the_task_is_declared(options: Any) -> None:
    with pytest.raises(InvalidTask):
        task(**options)(anything)
