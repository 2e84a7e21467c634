"""A worker, and several, on limits, keys and priorities: with their own threads, claims and endings."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from pgqueue import enqueue_many
from pgqueue.models import Job
from pgqueue.states import State
from tests.factories import LimitFactory
from tests.inline import work, work_through_retries, work_together
from tests.testapp.contract_tasks import give_back
from tests.testapp.limit_tasks import fail_now_and_then, go_on_for_ever, nap

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


def most_at_once(**which: Any) -> int:
    """Return how many of the jobs were running at one time, by their claims and endings."""
    moments: list[tuple[datetime, int]] = []
    for claimed_at, finished_at in Job.objects.filter(**which).values_list("claimed_at", "finished_at"):
        moments += [(claimed_at, 1), (finished_at, -1)]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    return most


@pytest.mark.case("D08")
@pytest.mark.parametrize("limit", ["tenant:acme", "queue:default", "task:tests.testapp.limit_tasks.nap", "resource:p"])
def test_a_worker_with_more_threads_than_the_limit_does_all_the_work_and_no_more_at_once(limit: str) -> None:
    """With nothing else to wake it: no enqueue, no other worker."""
    kind, name = limit.split(":")
    LimitFactory(id=limit, max_running=3)
    options = {kind: name} if kind in ("tenant", "resource") else {}
    enqueue_many(nap.using(**options).bind() for _ in range(20))
    work(concurrency=8)
    assert set(Job.objects.values_list("state", flat=True)) == {State.SUCCEEDED}
    assert most_at_once() == 3


@pytest.mark.case("D01")
def test_several_workers_together_keep_to_a_limit() -> None:
    LimitFactory(id="tenant:acme", max_running=2)
    enqueue_many(nap.using(tenant="acme").bind() for _ in range(20))
    work_together(3, concurrency=4)
    assert set(Job.objects.values_list("state", flat=True)) == {State.SUCCEEDED}
    assert most_at_once() <= 2


@pytest.mark.parametrize("strict", [True, False])
def test_keys_with_failures_on_several_workers_keep_their_order_as_declared(strict: bool) -> None:
    task = fail_now_and_then if strict else give_back
    keys = [f"key{number}" for number in range(8)]
    enqueue_many(task.using(shard_key=key).bind(number) for number in range(5) for key in keys)
    work_together(3, concurrency=4)
    work_through_retries(concurrency=4)
    for key in keys:
        jobs = Job.objects.filter(shard_key=key)
        assert set(jobs.values_list("state", flat=True)) == {State.SUCCEEDED}
        assert most_at_once(shard_key=key) == 1
        ids = list(jobs.order_by("finished_at").values_list("id", flat=True))
        assert ids == sorted(ids)


def test_low_priority_gets_its_eighth_of_a_stream_of_high_priority_that_never_ends(settings: Any) -> None:
    """Every job of high priority enqueues the next one. Jobs are claimed one by one: prefetched work is not counted."""
    settings.PGQUEUE = {"BATCH_SIZE": 1}
    enqueue_many(go_on_for_ever.using(priority=9).bind() for _ in range(20))
    low = enqueue_many(give_back.using(priority=-9).bind(number) for number in range(30))
    work(concurrency=1, max_jobs=160)
    done = Job.objects.filter(state=State.SUCCEEDED)
    assert done.count() == 160
    assert 18 <= done.filter(id__in=low).count() <= 22
    assert Job.objects.filter(state=State.PENDING, priority=9).exists()
