"""While somebody holds the table of jobs, as a migration does: every page answers within the bound, and tells why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from psycopg import Connection

from tests.admin.console import EVERYTHING, client_with, confirm_url, page
from tests.admin.test_pages import plain
from tests.factories import (
    BulkActionFactory,
    JobFactory,
    LimitFactory,
    MinuteStatFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
)

pytestmark = pytest.mark.django_db(transaction=True)
BOUND_SECONDS = 0.3
PATIENCE_SECONDS = 5.0
"""Far more than the bound, far less than for ever: a page that waits for the lock fails by this."""


@pytest.fixture
def locked(settings: Any, open_connection: Callable[[], Connection]) -> Iterator[Callable[[], None]]:
    """Return what locks the table of jobs in another session, until the test ends."""
    settings.PGQUEUE = {"CONSOLE_TIMEOUT_SECONDS": BOUND_SECONDS}
    other = open_connection()

    def lock() -> None:
        other.execute("BEGIN")
        other.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        # Only for a tree where a page waits: the test then fails instead of hanging.
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '20s'")

    yield lock
    other.rollback()
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")


@pytest.fixture
def anybody(transactional_db: None) -> Client:
    """Somebody with every permission."""
    return client_with("op1", *EVERYTHING)


def look(client: Client, url: str) -> Any:
    """Open a page, which must not wait for the lock."""
    began = time.monotonic()
    answer = client.get(url)
    assert time.monotonic() - began < PATIENCE_SECONDS, url
    return answer


@pytest.mark.parametrize(
    "name", ["job", "job/?state=dead", "job/?q=state:pending", "queue", "limit", "reconcile", "worker"]
)
def test_a_list_is_given_up_in_time(name: str, anybody: Client, locked: Callable[[], None]) -> None:
    QueueFactory(), LimitFactory(), WorkerFactory()
    locked()
    answer = look(anybody, f"/admin/pgqueue/{name}" if "?" in name else f"/admin/pgqueue/{name}/")
    assert answer.status_code == 503
    assert "This took too long and was given up" in plain(answer)
    assert "Another session may hold a lock on the table" in plain(answer)
    assert ("Narrow the filter" in plain(answer)) == (not name.startswith(("queue", "worker")))


def test_so_is_a_page(anybody: Client, locked: Callable[[], None]) -> None:
    job, worker, bulk = JobFactory(), WorkerFactory(), BulkActionFactory()
    urls = [page(job), page(job, "history"), confirm_url(job, "cancel"), page(worker), page(bulk)]
    locked()
    for url in urls:
        assert look(anybody, url).status_code in (302, 503), url
    assert look(anybody, page(job, "delete")).status_code == 403
    refused = anybody.post(f"/admin/pgqueue/job/{job.pk}/do/cancel/", {"seen": "x"})
    assert refused.status_code in (409, 503)


def test_the_overview_shows_what_is_not_locked(anybody: Client, locked: Callable[[], None]) -> None:
    MinuteStatFactory(outcome="dead", error="shop.CardDeclined", jobs=7)
    OperatorActionFactory(reason="the gateway is down")
    locked()
    answer = look(anybody, "/admin/pgqueue/overview/")
    said = plain(answer)
    assert answer.status_code == 200
    assert "Some figures took too long and are left out; the others are right." in said
    assert "CardDeclined" in said
    assert "the gateway is down" in said
    # Not known is not nothing.
    assert "Nothing: no outcome is unknown" not in said
    assert "Ready" not in said
    assert "Narrow the filter" not in said
    figures = look(anybody, "/admin/pgqueue/overview/overview.json")
    assert figures.status_code == 503
    assert figures.json()["too_slow"] == ["blockers", "live", "silent", "standing", "still_dead"]
    assert figures.json()["ready"] is None
    assert figures.json()["failed_within_24h"] == 7


def test_an_overview_that_is_quick_leaves_nothing_out(anybody: Client) -> None:
    answer = anybody.get("/admin/pgqueue/overview/overview.json")
    assert answer.status_code == 200
    assert answer.json()["too_slow"] == []
