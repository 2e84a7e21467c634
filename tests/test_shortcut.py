"""Enqueues past Django's cursor: taken where nobody could tell, and never where somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DataError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from pgqueue.models import JobPayload
from pgqueue.protocol import inserting, shortcut
from pgqueue.protocol.inserting import NewJob
from tests.inline import as_in_a_web_process, row
from tests.testapp.contract_tasks import double, nothing, with_options

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[list[bool]]:
    """For each enqueue, whether it went the short way, on a connection as outside of a worker."""
    taken: list[bool] = []

    def note(*args: Any) -> bytes | None:
        answer = shortcut.send_quickly(*args)
        taken.append(answer is not None)
        return answer

    monkeypatch.setattr(inserting, "send_quickly", note)
    with as_in_a_web_process():
        yield taken


def warm_up(quick: list[bool]) -> None:
    for _ in range(shortcut.LASTING + 1):
        nothing.enqueue()
    assert quick == [False] * shortcut.LASTING + [True]
    quick.clear()


def test_it_is_taken_on_a_connection_that_lasts(quick: list[bool]) -> None:
    warm_up(quick)
    result = nothing.enqueue()
    assert quick == [True]
    job = row(result.id)
    assert (job.state, job.created_at, job.run_at) == ("pending", result.enqueued_at, job.created_at)
    assert timezone.now() - result.enqueued_at < timedelta(minutes=1)


def test_options_and_arguments_go_the_same_way(quick: list[bool]) -> None:
    warm_up(quick)
    run_after = datetime(2040, 2, 29, 12, 30, tzinfo=UTC)
    result = with_options.using(tenant="größer", shard_key="k", priority=-7, run_after=run_after).enqueue("ü", [1.5])
    assert quick == [True]
    job = row(result.id)
    assert (job.tenant, job.shard_key, job.priority, job.run_at) == ("größer", "k", -7, run_after)
    assert JobPayload.objects.get(job_id=job.id).args == ["ü", [1.5]]


def test_in_a_block_it_is_the_callers_transaction(quick: list[bool]) -> None:
    warm_up(quick)
    with transaction.atomic():
        result = nothing.enqueue()
        transaction.set_rollback(True)
    assert quick == [False]
    with pytest.raises(Exception, match="matching query does not exist"):
        row(result.id)


def test_who_wraps_what_django_sends_sees_it(quick: list[bool]) -> None:
    warm_up(quick)
    seen: list[str] = []
    with connection.execute_wrapper(lambda execute, sql, *rest: seen.append(sql) or execute(sql, *rest)):
        nothing.enqueue()
    with CaptureQueriesContext(connection) as captured:
        nothing.enqueue()
    assert (quick, len([sql for sql in seen if "INSERT" in sql])) == ([False, False], 1)
    assert [query for query in captured.captured_queries if "INSERT" in query["sql"]]


def test_a_tracer_in_front_of_the_cursor_sees_it(quick: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """As those do that replace the method, once and for all, before the first request."""
    original, seen = CursorWrapper.execute, []

    def traced(self: Any, *args: Any) -> Any:
        seen.append(args[0])
        return original(self, *args)

    traced.__wrapped__ = original  # type: ignore[attr-defined]
    monkeypatch.setattr(CursorWrapper, "execute", traced)
    for _ in range(shortcut.LASTING + 2):
        nothing.enqueue()
    assert True not in quick
    assert len([sql for sql in seen if "INSERT" in sql]) == shortcut.LASTING + 2


def test_on_an_event_loop_it_is_refused_as_ever(quick: list[bool]) -> None:
    warm_up(quick)

    async def enqueue() -> None:
        nothing.enqueue()

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(enqueue())
    assert quick == []


def test_a_discarded_session_costs_nothing_but_time(quick: list[bool]) -> None:
    warm_up(quick)
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")
    ids = [nothing.enqueue().id for _ in range(2)]
    assert quick == [False, True]
    assert [row(id).state for id in ids] == ["pending"] * 2


def test_a_pooler_in_between_is_noticed(quick: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcut, "is_direct", lambda connection: False)
    for _ in range(shortcut.LASTING + 2):
        nothing.enqueue()
    assert True not in quick


def test_what_the_server_refuses_is_djangos_error(quick: list[bool]) -> None:
    warm_up(quick)
    with pytest.raises(DataError) as raised:
        inserting.insert("default", NewJob("q", "t", "[1", None, 0, 0, 8, "undeclared"))
    assert isinstance(raised.value.__cause__, psycopg.DataError)
    double.enqueue(1)
    assert quick == [True]
