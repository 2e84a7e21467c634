"""The hint that wakes workers: after the commit, at most once in a while, and never at the caller's cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext

from pgqueue import enqueue_many, enqueueing, notifying
from pgqueue.models import Job
from pgqueue.protocol import inserting
from tests.testapp.contract_tasks import double, give_back

committing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


@pytest.fixture(autouse=True)
def _as_if_long_ago() -> Iterator[None]:
    """Nothing was sent within the window."""
    notifying._sent_at.clear()
    yield
    notifying._sent_at.clear()


@pytest.fixture
def hear(queue_connection: psycopg.Connection[Any]) -> Callable[[], list[str]]:
    """A function that returns the queue names of all that was sent since the last call."""
    queue_connection.execute("LISTEN pgqueue")

    def heard() -> list[str]:
        # The server sends what is there with the next answer.
        queue_connection.execute("SELECT 1")
        return [notice.payload for notice in queue_connection.notifies(timeout=0)]

    return heard


def notifies(statement: str) -> bool:
    return "pg_notify" in statement and "WHEN false" not in statement


@committing
def test_an_enqueue_without_a_block_wakes_workers_at_once(hear: Callable[[], list[str]]) -> None:
    double.using(queue_name="mail").enqueue(1)
    assert hear() == ["mail"]


@committing
def test_an_enqueue_in_a_block_wakes_workers_after_the_commit(hear: Callable[[], list[str]]) -> None:
    with transaction.atomic():
        double.enqueue(1)
        assert hear() == []
    assert hear() == ["default"]


@committing
def test_a_rolled_back_enqueue_wakes_nobody(hear: Callable[[], list[str]]) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        double.enqueue(1)
        raise ZeroDivisionError
    with transaction.atomic(), pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        double.enqueue(1)
        raise ZeroDivisionError
    assert hear() == []


@committing
def test_a_hint_planned_in_a_savepoint_that_is_rolled_back_does_not_stand_for_a_later_one(
    hear: Callable[[], list[str]],
) -> None:
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            double.enqueue(1)
            raise ZeroDivisionError
        double.enqueue(2)
    assert hear() == ["default"]
    notifying._sent_at.clear()
    with transaction.atomic():
        double.enqueue(3)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            double.enqueue(4)
            raise ZeroDivisionError
    assert hear() == ["default"]


@committing
@pytest.mark.case("C23")
def test_a_thousand_enqueues_in_one_block_send_one_notification(hear: Callable[[], list[str]]) -> None:
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        for number in range(1_000):
            double.enqueue(number)
        assert len(connection.run_on_commit) == 1
    sent = [query["sql"] for query in captured if notifies(query["sql"])]
    assert len(sent) == 1
    assert hear() == ["default"]


@committing
def test_queues_in_turn_send_one_notification_each(hear: Callable[[], list[str]]) -> None:
    with transaction.atomic():
        for number in range(100):
            double.using(queue_name=f"q{number % 2}").enqueue(number)
    assert sorted(hear()) == ["q0", "q1"]


@committing
@pytest.mark.case("C23")
def test_a_batch_sends_one_notification_a_queue(hear: Callable[[], list[str]]) -> None:
    enqueue_many(double.using(queue_name=f"q{number % 3}").bind(number) for number in range(2_000))
    assert sorted(hear()) == ["q0", "q1", "q2"]


@committing
def test_enqueues_right_after_another_send_nothing_and_later_ones_do(hear: Callable[[], list[str]]) -> None:
    with override_settings(PGQUEUE={"NOTIFY_WINDOW_SECONDS": 3600}):
        for number in range(10):
            double.enqueue(number)
    assert hear() == ["default"]
    with override_settings(PGQUEUE={"NOTIFY_WINDOW_SECONDS": 1e-9}):
        double.enqueue(1)
        double.enqueue(2)
    assert hear() == ["default", "default"]


@committing
def test_the_notification_is_no_statement_of_the_callers_transaction() -> None:
    """It would make every commit wait for one lock of the whole server."""
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        double.enqueue(1)
    statements = [query["sql"] for query in captured]
    commit = statements.index("COMMIT")
    assert [number for number, sql in enumerate(statements) if notifies(sql)] == [commit + 1]


@committing
def test_without_a_block_the_enqueue_itself_wakes_workers(hear: Callable[[], list[str]]) -> None:
    """A statement apart would be a second commit between the enqueue and the worker."""
    for call in (double.bind(1), give_back.bind()):
        notifying._sent_at.clear()
        with CaptureQueriesContext(connection) as captured:
            call.task.enqueue(*call.args)
        assert len(captured) == 1
        assert hear() == ["default"]


@committing
def test_an_enqueue_that_fails_gives_no_hint_and_keeps_none_from_the_next(
    hear: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DatabaseError):
        inserting.insert("default", enqueueing._read(double).job._replace(priority=1000), wakes=True)
    assert hear() == []
    assert "notify.failed" not in caplog.text
    double.enqueue(1)
    assert hear() == ["default"]


@committing
def test_what_the_server_refuses_with_the_hint_is_sent_without_it(
    hear: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when nobody has read notifications for so long that no more fit."""
    really = inserting.load
    monkeypatch.setattr(inserting, "load", lambda name: really(name).replace("pg_notify('pgqueue'", "pg_notify(''"))
    double.enqueue(1)
    assert Job.objects.count() == 1
    assert hear() == []
    assert "notify.failed queue=default error=" in caplog.text


class TestInsideATestCase(TestCase):
    def test_nothing_is_sent_where_nothing_is_committed(self) -> None:
        with CaptureQueriesContext(connection) as captured, self.captureOnCommitCallbacks() as planned:
            double.enqueue(1)
        assert len(captured) == 1
        assert len(planned) == 1

    def test_what_was_planned_can_be_run(self) -> None:
        with CaptureQueriesContext(connection) as captured, self.captureOnCommitCallbacks(execute=True):
            double.enqueue(1)
        assert sum(notifies(query["sql"]) for query in captured) == 1


@committing
def test_a_notification_that_fails_costs_nothing_but_a_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inserting, "load", lambda name: "SELECT no_such_function()")
    with transaction.atomic():
        notifying.wake("default", "default")
        notifying.wake("default", "mail")
    notifying._sent_at.clear()
    notifying.wake("default", "default")
    assert [(record.name, record.levelname) for record in caplog.records] == [("pgqueue.notifying", "WARNING")] * 3
    assert "notify.failed queue=mail error=ProgrammingError" in caplog.text


@committing
def test_a_connection_that_is_lost_after_the_commit_costs_nothing(
    queue_connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid

    def terminate() -> None:
        queue_connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    with transaction.atomic():
        transaction.on_commit(terminate)
        double.enqueue(1)
    assert "notify.failed queue=default error=OperationalError" in caplog.text
    connection.close()
    assert Job.objects.count() == 1


@committing
def test_with_autocommit_off_the_enqueue_works_and_polling_finds_the_job(hear: Callable[[], list[str]]) -> None:
    transaction.set_autocommit(False)
    try:
        double.enqueue(1)
        enqueue_many([double.bind(2)])
        transaction.commit()
        double.enqueue(3)
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert Job.objects.count() == 2


@committing
@override_settings(PGQUEUE={"NOTIFY": False})
def test_nothing_is_sent_when_the_setting_says_so(hear: Callable[[], list[str]]) -> None:
    double.enqueue(1)
    enqueue_many([double.bind(1)])
    assert hear() == []
