"""What an error of the database means for the queue's own statements."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import connection

from pgqueue import effects
from pgqueue.keeping import Answer, Keeper, keeper
from pgqueue.models import Attempt, Effect, Job, JobResult
from pgqueue.protocol.connecting import connect
from pgqueue.protocol.lending import lender
from pgqueue.protocol.settling import Ending, EndingKind, Settled, settle, settle_each
from pgqueue.server_errors import is_for_all, is_of_a_connection, is_of_the_value, is_read_only, may_pass
from pgqueue.takeover import take_over_expired
from pgqueue.worker import process
from pgqueue.worker.exits import Exit
from pgqueue.worker.postponed import Postponed
from tests.factories import WORKER, AttemptFactory, EffectFactory, JobFactory
from tests.inline import row, work
from tests.testapp import effect_tasks
from tests.testapp.contract_tasks import record
from tests.testapp.effect_tasks import Remote, manual, transactional

racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
SERVERS = ("42501", "42P01", "0A000", "25006")
"""A privilege that was withdrawn, a table that was renamed, a plan that grew old, a server that became read-only."""


def error(sqlstate: str) -> psycopg.Error:
    return psycopg.errors.lookup(sqlstate)("secret")


@pytest.mark.parametrize("sqlstate", ["22P02", "22P05", "54000", "54001"])
def test_a_value_that_would_be_refused_again_is_the_jobs_fault(sqlstate: str) -> None:
    assert is_of_the_value(error(sqlstate))


@pytest.mark.parametrize("sqlstate", [*SERVERS, "P0001", "XX001", "23514", "42703", "57014", "25P03", "53100"])
def test_everything_else_is_the_servers(sqlstate: str) -> None:
    assert not is_of_the_value(error(sqlstate))


def test_what_the_driver_refuses_is_the_values_and_a_lost_connection_is_not() -> None:
    assert is_of_the_value(psycopg.DataError("NUL"))
    assert not is_of_the_value(psycopg.OperationalError("gone"))
    assert not is_of_the_value(OSError("gone"))
    assert not is_of_the_value(ValueError("ours"))


def test_a_standby_and_a_lost_connection_are_told_apart_from_a_refused_statement() -> None:
    assert [is_read_only(one) for one in (error("25006"), error("42501"), psycopg.OperationalError("gone"))] == [
        True,
        False,
        False,
    ]
    lost = [psycopg.OperationalError("gone"), error("08006"), error("28P01"), error("53300"), error("57P03")]
    refused = [error("57014"), error("42501"), error("25006"), error("53100"), psycopg.DataError("NUL")]
    assert [is_of_a_connection(one) for one in lost + refused] == [True] * 5 + [False] * 5


def test_a_server_that_is_away_busy_or_locked_may_be_there_for_the_next_try() -> None:
    passing = [psycopg.OperationalError("gone"), *map(error, ("08006", "40001", "53300", "55P03", "57014", "57P03"))]
    lasting = [psycopg.DataError("NUL"), *map(error, ("25006", "42501", "42P01", "P0001", "22P02"))]
    assert [may_pass(one) for one in passing + lasting] == [True] * len(passing) + [False] * len(lasting)


@pytest.mark.parametrize(
    ("in_a_row", "took_seconds", "is_all"), [(1, 0.1, False), (2, 0.1, False), (3, 0.1, True), (1, 5.0, True)]
)
def test_a_few_refusals_in_a_row_or_one_that_took_long_stand_for_all(
    in_a_row: int, took_seconds: float, is_all: bool
) -> None:
    assert is_for_all(in_a_row, took_seconds=took_seconds) is is_all


@racing
def test_a_constraint_of_the_queues_own_is_the_jobs_fault_and_one_of_the_sites_is_not() -> None:
    with connect("default", role="test") as session:
        with pytest.raises(psycopg.errors.CheckViolation) as own:
            session.execute("UPDATE pgqueue_job SET attempts = 9 WHERE id = %s", [JobFactory(running=True).pk])
        with pytest.raises(psycopg.errors.CheckViolation) as foreign:
            session.execute("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END $$")
    assert is_of_the_value(own.value)
    assert not is_of_the_value(foreign.value)


# what becomes of endings


@contextmanager
def refusing(table: str, sqlstate: str, when: str = "true") -> Iterator[None]:
    """Have a trigger of the site refuse rows of a table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION site_refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" RAISE EXCEPTION 'the site refuses' USING ERRCODE = '{sqlstate}'; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER site_refuses BEFORE INSERT OR UPDATE ON {table}"
            f" FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION site_refuses()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION site_refuses CASCADE")


def attempt(session: psycopg.Connection[Any], ending: Ending) -> Settled:
    """Settle an ending. What meets every statement alike is raised, and the ending is kept as well."""
    try:
        return settle(session, worker_id=WORKER, endings=[ending])
    except psycopg.Error as error:
        return Settled(refused=[(ending, error)])


@racing
@pytest.mark.parametrize("sqlstate", SERVERS)
def test_a_run_that_succeeded_is_not_made_dead_by_the_servers_fault(sqlstate: str) -> None:
    job = JobFactory(running=True)
    ending = Ending(EndingKind.COMPLETE, job.pk, job.fence, 0.1, result="1")
    with connect("default", role="test") as session, refusing("pgqueue_jobresult", sqlstate):
        assert [one for one, _ in attempt(session, ending).refused] == [ending]
    assert row(job.pk).state == "running"
    with connect("default", role="test") as session:
        assert settle(session, worker_id=WORKER, endings=[ending]).written[job.pk].state == "succeeded"
    assert JobResult.objects.get(pk=job.pk).value == 1


@racing
@pytest.mark.parametrize("sqlstate", SERVERS)
def test_a_transactional_run_is_retried_after_the_servers_fault(sqlstate: str) -> None:
    effect_tasks.script["run"] = lambda context: 1
    id = int(transactional.enqueue().id)
    with refusing("pgqueue_jobresult", sqlstate):
        work(max_jobs=1)
    assert row(id).state == "retrying"


@racing
@pytest.mark.parametrize("sqlstate", ["P0001", "XX001", "57014", "58030", "40P01", "53200", "0A000", "25006"])
def test_one_refused_ending_keeps_neither_other_endings_nor_claims_waiting(sqlstate: str) -> None:
    """Whatever a trigger of the site says: a statement that was cancelled as it waits, a page that cannot be read."""
    refused = int(record.enqueue(0).id)
    with refusing("pgqueue_job", sqlstate, f"NEW.id = {refused} AND NEW.state <> 'running'"):
        others = [int(record.enqueue(number).id) for number in range(1, 30)]
        assert work(concurrency=1, lease_seconds=1, poll_seconds=1) == Exit.UNFIT
    assert {row(id).state for id in others} == {"succeeded"}
    assert Job.objects.get(pk=refused).state == "running"


@racing
def test_a_server_that_refuses_one_ending_after_the_other_is_not_asked_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endings = [
        Ending(EndingKind.COMPLETE, job.pk, job.fence, 0.1) for job in (JobFactory(running=True) for _ in "12345")
    ]
    postponed = Postponed(clock=(clock := Clock()))
    with connect("default", role="test") as session:
        with refusing("pgqueue_job", "42501"):
            first = settle(session, worker_id=WORKER, endings=endings)
            assert [len(kind) for kind in (first.written, first.busy, first.refused, first.untried)] == [0, 0, 3, 2]
            postponed.add(first.refused, untried=first.untried)
            clock.now += 60
            assert postponed.due() == [*first.untried, *(ending for ending, _ in first.refused)]
        second = settle_each(session, worker_id=WORKER, endings=postponed.due())
    assert second.written.keys() == {ending.id for ending in endings}
    postponed.forget(second.over(endings))
    assert len(postponed) == 0
    assert caplog.text.count("settle.unwritable") == 3


@racing
def test_a_takeover_that_the_server_refuses_keeps_no_other_from_being_decided(caplog: pytest.LogCaptureFixture) -> None:
    jobs = [JobFactory(expired=True) for _ in range(6)]
    refused = jobs[2].pk
    with connect("default", role="test") as session, refusing("pgqueue_job", "57014", f"NEW.id = {refused}"):
        taken = take_over_expired(session)
    assert {one.job.id for one in taken} == {job.pk for job in jobs} - {refused}
    assert f"takeover.failed job={refused} error=QueryCanceled sqlstate=57014" in caplog.text


# what becomes of the answer of a call


@contextmanager
def refusing_twice(sqlstate: str) -> Iterator[None]:
    """Refuse the first two updates of an effect. A sequence is not rolled back."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE site_tries")
        cursor.execute(
            "CREATE FUNCTION site_refuses_twice() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('site_tries') <= 2 THEN"
            f" RAISE EXCEPTION 'the site refuses' USING ERRCODE = '{sqlstate}'; END IF; RETURN NEW; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER site_refuses_twice BEFORE UPDATE ON pgqueue_effect"
            " FOR EACH ROW EXECUTE FUNCTION site_refuses_twice()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION site_refuses_twice CASCADE")
            cursor.execute("DROP SEQUENCE site_tries")


@racing
@pytest.mark.parametrize("sqlstate", [*SERVERS, "25P03", "57014", "P0001"])
def test_an_answer_that_the_server_refuses_is_recorded_when_it_takes_it_again(sqlstate: str) -> None:
    remote = Remote()
    effect_tasks.script["run"] = lambda context: context.effect("pay", remote)
    id = int(manual.enqueue().id)
    with refusing_twice(sqlstate):
        assert work() == 0
    assert (row(id).state, len(remote.asked)) == ("succeeded", 1)
    assert Effect.objects.get(job_id=id).result == {"id": "r1"}


@racing
def test_an_answer_outlives_the_time_limit_that_ends_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is thrown into the thread while that waits for the server to take the answer."""
    monkeypatch.setattr(process, "KEEPING_SECONDS", 0.1)
    remote = Remote()
    effect_tasks.script["run"] = lambda context: context.effect("pay", remote)
    id = int(manual.using(max_run_seconds=1).enqueue().id)
    with refusing("pgqueue_effect", "42501", "NEW.stage = 'result_known'"):
        assert work() == 0
    assert (row(id).state, len(remote.asked)) == ("unknown", 1)
    keeper.flush(timeout_seconds=30)
    [attempt] = Attempt.objects.filter(job_id=id)
    assert [said["result"] for said in attempt.evidence] == [{"id": "r1"}]
    assert attempt.error_class == "pgqueue.exceptions.JobTimeoutError"


@racing
def test_an_answer_that_the_server_refuses_for_long_is_kept_beside_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The heartbeat renews the lease meanwhile: the thread would keep its slot, and its process from ending."""
    monkeypatch.setattr(effects, "RECORDING_SECONDS", 1.0)
    monkeypatch.setattr(process, "KEEPING_SECONDS", 0.1)
    remote = Remote()
    effect_tasks.script["run"] = lambda context: context.effect("pay", remote)
    id = int(manual.enqueue().id)
    with refusing("pgqueue_effect", "42501", "NEW.stage = 'result_known'"):
        assert work() == 0
    keeper.flush(timeout_seconds=30)
    assert (row(id).state, len(remote.asked)) == ("unknown", 1)
    [attempt] = Attempt.objects.filter(job_id=id)
    assert ([said["result"] for said in attempt.evidence], attempt.error_class) == (
        [{"id": "r1"}],
        "psycopg.errors.InsufficientPrivilege",
    )
    lines = [message for message in caplog.messages if message.startswith("effect.unwritten")]
    assert [line.partition("failures=")[2].split()[0] for line in lines][:3] == ["1", "2", "4"]
    assert f"job={id} effect=pay key=job:{id}:pay " in lines[0]


@pytest.fixture(autouse=True)
def _lent_connections_are_closed() -> Iterator[None]:
    yield
    lender.close()


def answer_of(job: Job) -> Answer:
    lease = SimpleNamespace(id=job.pk, fence=job.fence, worker_id=WORKER)
    return Answer("default", lease, "sms", "k:sms", '{"id": "ch_1"}', "ch_1", time.monotonic())  # type: ignore[arg-type]


@racing
def test_an_answer_is_recorded_on_its_effect_while_the_job_is_ours(caplog: pytest.LogCaptureFixture) -> None:
    job = JobFactory(running=True, stage="outcome_unknown", unknown_effects=1)
    EffectFactory(job_id=job.pk, fence=job.fence)
    keeper = Keeper()
    with refusing("pgqueue_effect", "42501"):
        keeper.keep(answer_of(job))
        assert Effect.objects.get(job_id=job.pk).result is None
    keeper.flush(timeout_seconds=30)
    assert Effect.objects.get(job_id=job.pk).result == {"id": "ch_1"}
    assert "key=k:sms" in caplog.text
    assert "ch_1" not in caplog.text


@racing
def test_an_answer_is_tried_again_at_once_when_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the pause between two tries is by then."""
    monkeypatch.setattr("pgqueue.keeping.delay_seconds", lambda *args, **kwargs: 3600.0)
    job = JobFactory(running=True, stage="outcome_unknown", unknown_effects=1)
    EffectFactory(job_id=job.pk, fence=job.fence)
    keeper = Keeper()
    with refusing("pgqueue_effect", "42501"):
        keeper.keep(answer_of(job))
    keeper.flush(timeout_seconds=30)
    assert Effect.objects.get(job_id=job.pk).result == {"id": "ch_1"}


@racing
def test_an_answer_of_a_lost_job_is_kept_as_evidence_as_soon_as_there_is_an_attempt() -> None:
    job = JobFactory()
    keeper = Keeper()
    keeper.keep(answer_of(job))
    attempt = AttemptFactory(job_id=job.pk, fence=job.fence, outcome="lost")
    keeper.flush(timeout_seconds=30)
    attempt.refresh_from_db()
    assert [said["remote_reference"] for said in attempt.evidence] == ["ch_1"]


@racing
def test_an_answer_that_is_not_taken_before_the_end_is_told_by_its_key(caplog: pytest.LogCaptureFixture) -> None:
    keeper = Keeper()
    job = JobFactory()
    keeper.keep(answer_of(job))
    keeper.flush(timeout_seconds=0.1)
    assert "effect.evidence_lost" in caplog.text
    AttemptFactory(job_id=job.pk, fence=job.fence, outcome="lost")
    keeper.flush(timeout_seconds=30)


# an ending's own backoff


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ending(id: int = 7, fence: int = 1) -> Ending:
    return Ending(EndingKind.COMPLETE, id, fence)


def test_a_refused_ending_is_due_again_later_each_time() -> None:
    clock = Clock()
    postponed = Postponed(clock=clock)
    waits = []
    for _ in range(12):
        postponed.add([(ending(), error("P0001"))])
        assert postponed.due() == []
        waits.append(postponed.pause(60))
        clock.now += waits[-1]
        assert postponed.due() == [ending()]
    assert waits[0] < 1 < waits[-1] <= 10


def test_before_its_process_ends_a_refused_ending_is_sent_once_more() -> None:
    postponed = Postponed(clock=Clock())
    postponed.add([(ending(), error("P0001"))])
    postponed.hurry()
    assert postponed.due() == [ending()]


def test_what_was_written_or_lost_is_forgotten_and_a_later_lease_is_another_one() -> None:
    postponed = Postponed()
    postponed.add([(ending(7), error("P0001")), (ending(8), error("P0001"))])
    postponed.forget([ending(7), ending(8, fence=2)])
    assert postponed.ids() == {8}


def test_a_refusal_is_told_once_then_sparsely_and_without_the_message(caplog: pytest.LogCaptureFixture) -> None:
    postponed = Postponed()
    for _ in range(9):
        postponed.add([(ending(), error("P0001"))])
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition("refusals=")[2].split()[0] for line in told] == ["1", "2", "4", "8"]
    assert "sqlstate=P0001" in told[0]
    assert "secret" not in "".join(told)
