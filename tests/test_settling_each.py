"""Completions that are committed at once and alone, on a thread of their run's or beside the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import override_settings

from pgqueue import execution, registry
from pgqueue.holding import Held
from pgqueue.models import Attempt, Job
from pgqueue.protocol.completing import commit_alone
from pgqueue.protocol.settling import Ending
from pgqueue.states import State
from pgqueue.testing import take_over_now
from pgqueue.worker import dispatcher as dispatcher_module
from pgqueue.worker import event_loop, process
from pgqueue.worker.dispatcher import Dispatcher
from pgqueue.worker.inbox import Inbox, Signal
from pgqueue.worker.options import Options
from pgqueue.worker.process import _run
from tests.inline import row, work
from tests.testapp import effect_tasks
from tests.testapp.effect_tasks import manual, manual_later, settled_each, settled_each_later

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

EACH = pytest.mark.parametrize("of", [settled_each, settled_each_later], ids=["thread", "loop"])
CALLING = pytest.mark.parametrize("of", [manual, manual_later], ids=["thread", "loop"])
PATIENCE_SECONDS = 20


def enqueue(body: Callable[[Any], Any], *, of: Any, name: str = "run") -> int:
    effect_tasks.script[name] = sync_to_async(body) if registry.is_async(of.module_path) else body
    return int(of.enqueue(name).id)


def run_two(body: Callable[[Any], Any], *, of: Any) -> tuple[int, str]:
    """Run a job and, in the same slot, one that sees how the first one stands; return its id and that."""
    first = enqueue(body, of=of, name="first")
    second = enqueue(lambda context: str(Job.objects.get(pk=first).state), of=of, name="second")
    work(concurrency=1, async_concurrency=1)
    return first, of.get_result(str(second)).return_value


@pytest.fixture
def settled_alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of the jobs whose completion was sent at once and alone."""
    ids: list[int] = []

    def note(connection: Any, **given: Any) -> Any:
        ids.append(given["ending"].id)
        return commit_alone(connection, **given)

    monkeypatch.setattr(execution, "commit_alone", note)
    return ids


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Ending]:
    """What dispatchers were told."""
    endings: list[Ending] = []

    def note(inbox: Inbox, ending: Ending, add: Callable[[Inbox, Ending], None] = Inbox.add) -> None:
        endings.append(ending)
        add(inbox, ending)

    monkeypatch.setattr(Inbox, "add", note)
    return endings


class Writing:
    """A completion that is about to be written, and is not until the test says so."""

    def __init__(self) -> None:
        self.can_write = True
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, connection: Any, **given: Any) -> Any:
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE_SECONDS)
        if not self.can_write:
            raise psycopg.OperationalError
        return commit_alone(connection, **given)


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writing]:
    writing = Writing()
    monkeypatch.setattr(execution, "commit_alone", writing)
    yield writing
    writing.may_go_on.set()


@pytest.fixture
def start(in_background: Callable[..., Future[Any]]) -> Iterator[Callable[..., tuple[Inbox, Future[Any]]]]:
    """A function that starts a worker which works until it is told to stop."""

    def start_one(**given: Any) -> tuple[Inbox, Future[Any]]:
        inbox = Inbox()
        options = {"alias": "default", "concurrency": 1, "lease_seconds": 60, "poll_seconds": 0.2, **given}
        return inbox, in_background(_run, Options(**options), inbox)

    with override_settings(PGQUEUE={"LISTEN": False, "KILL_GRACE_SECONDS": 0.2}):
        yield start_one


@EACH
def test_the_completion_stands_before_the_next_job_begins(settled_alone: list[int], of: Any) -> None:
    first, seen = run_two(lambda context: list(settled_alone), of=of)
    assert (seen, of.get_result(str(first)).return_value) == (State.SUCCEEDED, [])
    assert settled_alone == [first, first + 1]
    assert (row(first).attempts, row(first).version) == (1, 3)


@CALLING
def test_so_does_that_of_a_run_that_called_an_effect(settled_alone: list[int], of: Any) -> None:
    first, seen = run_two(lambda context: context.effect("sms", lambda key: 1), of=of)
    assert (seen, settled_alone) == (State.SUCCEEDED, [first])


@EACH
def test_the_dispatcher_is_told_that_it_is_written_and_how_long_that_took(told: list[Ending], of: Any) -> None:
    id = enqueue(lambda context: None, of=of)
    work()
    (ending,) = told
    assert ending.written is not None
    assert (ending.id, ending.written.at) == (id, row(id).finished_at)
    assert ending.settle_seconds > 0


@EACH
def test_what_cannot_be_written_at_once_the_dispatcher_writes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, of: Any
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError

    monkeypatch.setattr(execution, "commit_alone", refuse)
    first, _ = run_two(lambda context: 7, of=of)
    assert row(first).state == State.SUCCEEDED
    assert f"settle.postponed job={first}" in caplog.text


@EACH
def test_a_run_that_fails_is_left_to_the_dispatcher(settled_alone: list[int], of: Any) -> None:
    id = enqueue(lambda context: 1 / 0, of=of)
    work(max_jobs=1)
    assert (row(id).state, settled_alone) == (State.RETRYING, [])


@EACH
def test_one_that_lost_its_lease_is_refused_and_what_it_says_is_kept_once(
    caplog: pytest.LogCaptureFixture, of: Any
) -> None:
    def lose(context: Any) -> int:
        Job.objects.update(lease_until="2000-01-01T00:00Z")
        take_over_now()
        return 7

    id = enqueue(lose, of=of)
    work(max_jobs=1)
    assert row(id).state == State.RETRYING
    assert [one["result"] for one in Attempt.objects.get(job_id=id).evidence] == [7]
    assert caplog.text.count("ending.refused") == 1


def test_whose_lease_may_have_run_out_writes_nothing_at_once(
    monkeypatch: pytest.MonkeyPatch, settled_alone: list[int]
) -> None:
    """The server may be away: nobody waits for it once nothing is held any more."""
    id = enqueue(lambda context: monkeypatch.setattr(Held, "may_be_lost", lambda held: True), of=settled_each)
    work(max_jobs=1)
    assert (row(id).state, settled_alone) == (State.SUCCEEDED, [])


# -- beside the loop ---------------------------------------------------------------------------------------


def test_the_loop_goes_on_while_a_completion_is_written(writing: Writing) -> None:
    """The first is not written before the second, on the same loop, says so."""
    first = enqueue(lambda context: None, of=settled_each_later, name="first")

    def let_it_go_on(context: Any) -> str:
        assert writing.has_begun.wait(PATIENCE_SECONDS)
        state = str(Job.objects.get(pk=first).state)
        writing.may_go_on.set()
        return state

    second = enqueue(let_it_go_on, of=settled_each_later, name="second")
    assert work(async_concurrency=2) == 0
    assert settled_each_later.get_result(str(second)).return_value == State.RUNNING
    assert row(first).state == State.SUCCEEDED


def test_one_that_is_slow_to_write_keeps_no_other(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    first = enqueue(lambda context: None, of=settled_each_later, name="first")
    monkeypatch.setattr(
        execution,
        "commit_alone",
        lambda connection, **given: (writing if given["ending"].id == first else commit_alone)(connection, **given),
    )
    others = [enqueue(lambda context: None, of=settled_each_later, name=f"other-{number}") for number in range(20)]
    watcher = threading.Thread(target=_go_on_when, args=(writing, partial(_have_succeeded, others)))
    watcher.start()
    assert work(async_concurrency=50) == 0
    watcher.join()
    assert {row(id).state for id in (first, *others)} == {State.SUCCEEDED}
    assert row(first).finished_at > max(row(id).finished_at for id in others)


def _go_on_when(writing: Writing, is_so: Callable[[], bool]) -> None:
    try:
        assert writing.has_begun.wait(PATIENCE_SECONDS)
        while not (is_so() or writing.may_go_on.wait(0.01)):
            pass
        writing.may_go_on.set()
    finally:
        connections.close_all()


def _have_succeeded(ids: list[int]) -> bool:
    return Job.objects.filter(pk__in=ids, state=State.SUCCEEDED).count() == len(ids)


def test_a_drain_waits_for_what_is_being_written(
    writing: Writing, start: Callable[..., tuple[Inbox, Future[Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    id = enqueue(lambda context: None, of=settled_each_later)
    inbox, worker = start()
    assert writing.has_begun.wait(PATIENCE_SECONDS)
    inbox.put(Signal.STOP)
    _until(lambda: "worker.draining" in caplog.text)
    assert not worker.done()
    writing.may_go_on.set()
    assert worker.result(PATIENCE_SECONDS) == 0
    assert row(id).state == State.SUCCEEDED


class LeftError(Exception):
    """In the place of the end of the process."""


@pytest.mark.parametrize("can_be_written", [True, False], ids=["written", "left to the dispatcher"])
def test_so_does_a_process_whose_loop_is_blocked_for_good(
    monkeypatch: pytest.MonkeyPatch,
    writing: Writing,
    start: Callable[..., tuple[Inbox, Future[Any]]],
    can_be_written: bool,
) -> None:
    """It is written and told without the loop, on which nothing will ever end; and so is what nobody has read yet."""
    writing.can_write = can_be_written
    answers: list[bool] = []
    unblock = threading.Event()

    def is_done(dispatcher: Dispatcher, ask: Callable[[Dispatcher], bool] = Dispatcher._is_done) -> bool:
        if not dispatcher.orders.has_stuck:
            return ask(dispatcher)
        if len(answers) == 3:
            writing.may_go_on.set()
            _until(dispatcher._pools.is_idle)
        answers.append(ask(dispatcher))
        return answers[-1]

    def leave(*_: Any, **__: Any) -> None:
        raise LeftError

    async def block(context: Any) -> None:
        unblock.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(Dispatcher, "_is_done", is_done)
    monkeypatch.setattr(process, "leave", leave)
    monkeypatch.setattr(dispatcher_module, "STUCK_SECONDS", 0.05)
    monkeypatch.setattr(event_loop, "BLOCKED_SECONDS", 0.3)
    id = enqueue(lambda context: None, of=settled_each_later)
    _, worker = start()
    assert writing.has_begun.wait(PATIENCE_SECONDS)
    effect_tasks.script["block"] = block
    blocking = int(manual_later.using(max_run_seconds=1).enqueue("block").id)
    try:
        with pytest.raises(LeftError):
            worker.result(PATIENCE_SECONDS)
    finally:
        unblock.set()
    assert (answers[:4], answers[-1]) == ([False] * 4, True)
    assert (row(id).state, row(blocking).state) == (State.SUCCEEDED, State.RUNNING)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
