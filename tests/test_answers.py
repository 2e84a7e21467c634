"""Answers that are read after the next trip has left, and those that cannot be read."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from pgqueue import enqueue_many
from pgqueue.models import Job
from pgqueue.protocol.claiming import Haul
from pgqueue.protocol.settling import Ending, EndingKind
from pgqueue.worker import dispatcher as dispatching
from tests.inline import work
from tests.races.rows import WORKER, add_jobs
from tests.testapp.contract_tasks import record, recorded

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
COUNT = 300


@pytest.fixture(autouse=True)
def _nothing_recorded() -> None:
    recorded.clear()


def test_the_next_trip_leaves_before_the_last_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trip here takes until what was handed out has run, as one does that takes longer than the jobs."""
    really_travel, really_read = dispatching.settle_and_claim, Haul.read
    travelling, handed_out, read_on_the_way = False, 0, 0

    def travel(*args: Any, **options: Any) -> Any:
        nonlocal travelling
        travelling = True
        answer = really_travel(*args, **options)
        travelling = False
        patience = time.monotonic() + 30
        while len(recorded) < handed_out and time.monotonic() < patience:
            time.sleep(0.001)
        return answer

    def read(haul: Haul) -> Any:
        nonlocal handed_out, read_on_the_way
        leases = really_read(haul)
        handed_out += len(leases)
        read_on_the_way += len(leases) if travelling else 0
        return leases

    monkeypatch.setattr(dispatching, "FEW", 2)
    monkeypatch.setattr(dispatching, "settle_and_claim", travel)
    monkeypatch.setattr(Haul, "read", read)
    enqueue_many(record.bind(number) for number in range(COUNT))
    assert work(concurrency=4) == 0
    assert sorted(recorded) == list(range(COUNT))
    assert read_on_the_way > 0


def test_what_was_settled_is_forgotten_and_counted_though_it_is_read_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two endings in the inbox are enough here for the next trip to leave first."""
    really, put_off = dispatching.settle_and_claim, []

    def travel(*args: Any, **options: Any) -> Any:
        settled, hauls = really(*args, **options)
        put_off.append(not settled.is_read)
        return settled, hauls

    monkeypatch.setattr(dispatching, "FEW", 2)
    monkeypatch.setattr(dispatching, "settle_and_claim", travel)
    enqueue_many(record.bind(number) for number in range(COUNT))
    with caplog.at_level("INFO", logger="pgqueue"):
        assert work(concurrency=4) == 0
    assert any(put_off)
    assert set(Job.objects.values_list("state", "attempts")) == {("succeeded", 1)}
    assert f"succeeded={COUNT}" in caplog.text


@pytest.mark.parametrize(
    ("kinds", "strangers", "may_wait"),
    [
        ((EndingKind.COMPLETE, EndingKind.COMPLETE), 0, True),
        ((EndingKind.COMPLETE, EndingKind.RELEASE), 0, False),
        ((EndingKind.COMPLETE, EndingKind.COMPLETE), 1, False),
    ],
    ids=["all completed", "one is for others", "one was refused"],
)
def test_only_completions_that_were_all_written_are_read_later(
    queue_connection: psycopg.Connection[Any], kinds: tuple[EndingKind, ...], strangers: int, may_wait: bool
) -> None:
    """Others are woken for what is given back; what was refused is looked up."""
    jobs = add_jobs(len(kinds), running=True)
    endings = [Ending(kind, job.id, job.fence) for kind, job in zip(kinds, jobs, strict=True)]
    refused = [endings[0]._replace(fence=endings[0].fence + 1_000)] * strangers
    sent = [*refused, *endings[len(refused) :]]
    settled, _ = dispatching.settle_and_claim(queue_connection, worker_id=WORKER, endings=sent, wishes=[])
    assert settled.is_read is not may_wait
    assert settled.lost == refused
    assert set(settled.written) == {ending.id for ending in sent if ending not in refused}


def test_what_cannot_be_read_is_given_back_and_runs_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also without a reconnect; nobody would renew those leases."""
    really, failed = Haul.read, []

    def read(haul: Haul) -> Any:
        if len(haul) and not failed:
            failed.append(len(haul))
            raise psycopg.OperationalError("the connection is lost")
        return really(haul)

    monkeypatch.setattr(Haul, "read", read)
    enqueue_many(record.bind(number) for number in range(COUNT))
    assert work() == 0
    assert failed
    assert sorted(recorded) == list(range(COUNT))
    assert set(Job.objects.values_list("state", "attempts", "lease_losses")) == {("succeeded", 1, 0)}
    assert f"claim.unread count={failed[0]}" in caplog.text
    assert caplog.text.count("claim.unheard") == failed[0]
