"""Completions that their own thread commits before it takes another job."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgqueue import execution, task
from pgqueue.compat import InvalidTask
from pgqueue.models import Job
from pgqueue.protocol.completing import settle_alone
from pgqueue.states import State
from tests.inline import row, work
from tests.testapp import effect_tasks
from tests.testapp.effect_tasks import manual, settled_each

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


async def coroutine() -> None: ...


def enqueue(body: Any, *, of: Any, name: str) -> int:
    effect_tasks.script[name] = body
    return int(of.enqueue(name).id)


def run_two(body: Any, *, of: Any) -> tuple[int, str]:
    """Run a job and, on the same thread, one that sees how the first one stands; return its id and that."""
    first = enqueue(body, of=of, name="first")
    second = enqueue(lambda context: str(Job.objects.get(pk=first).state), of=of, name="second")
    work(concurrency=1)
    return first, of.get_result(str(second)).return_value


@pytest.fixture
def settled_by_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of the jobs whose completion their own thread has written."""
    ids: list[int] = []

    def note(connection: Any, **given: Any) -> Any:
        ids.append(given["ending"].id)
        return settle_alone(connection, **given)

    monkeypatch.setattr(execution, "settle_alone", note)
    return ids


def test_the_completion_stands_before_the_next_job_begins(settled_by_threads: list[int]) -> None:
    first, seen = run_two(lambda context: list(settled_by_threads), of=settled_each)
    assert (seen, settled_each.get_result(str(first)).return_value) == (State.SUCCEEDED, [])
    assert settled_by_threads == [first, first + 1]
    assert (row(first).attempts, row(first).version) == (1, 3)


def test_so_does_that_of_a_run_that_called_an_effect(settled_by_threads: list[int]) -> None:
    first, seen = run_two(lambda context: context.effect("sms", lambda key: 1), of=manual)
    assert (seen, settled_by_threads) == (State.SUCCEEDED, [first])


def test_what_the_thread_cannot_write_the_dispatcher_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError

    monkeypatch.setattr(execution, "settle_alone", refuse)
    first, _ = run_two(lambda context: 7, of=settled_each)
    assert row(first).state == State.SUCCEEDED
    assert f"settle.postponed job={first}" in caplog.text


def test_a_coroutine_cannot_ask_for_it() -> None:
    with pytest.raises(InvalidTask, match="settle='each' needs a plain function"):
        task(settle="each")(coroutine)
