"""The fault matrix: what each policy makes of each fault at each moment, counted by the provider.

Every cell is one job of its own; the cells of a row share one worker, and so one signal. Each row is printed as the
docs have it, and must stand there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgqueue.models import Job, Queue
from tests.testapp import matrix_tasks

from .harness import SHORT, Database, Workers, until
from .provider import Provider
from .proxy import ENDING_ALONE, Fault, Proxy

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "when-a-worker-dies.md"
POLICIES = ("idempotent", "probed", "manual", "undeclared", "transactional")
KEEPS = {"keys": "yes", "forgets": "no", "fences": "no, but checks fences"}
MOMENTS = {
    "before": "before the call",
    "inside": "inside it",
    "after": "after the other side did it",
    "stored": "after the result was stored",
    "confirming": "while confirming",
}
MAX_RUN_SECONDS = 8
SETTINGS = {"LEASE_SECONDS": 5, "CONCURRENCY": 15, "KILL_GRACE_SECONDS": 20, "BACKOFF_BASE_SECONDS": 0.1}
ENDED = "state IN ('succeeded', 'dead', 'cancelled') OR (state = 'unknown' AND probe_at IS NULL)"
COMMITS = {
    "before": b"pgqueue.open_effect*",
    "inside": b"pgqueue.record_effect*",
    "after": b"pgqueue.record_effect*",
    "stored": b"pgqueue.move_effect*",
    "confirming": b"pgqueue.move_effect*",
}
"""The write whose COMMIT comes next after each moment."""


def moments(*in_short: str) -> pytest.MarkDecorator:
    """Take every moment, in the short form some."""
    return pytest.mark.parametrize("moment", in_short if SHORT else MOMENTS)


def cells(moment: str, *keeps: str) -> set[str]:
    """Return policy/memory of each cell; a transactional task has no calls with moments of their own."""
    policies = POLICIES if moment in ("before", "inside", "after") else POLICIES[:-1]
    return {f"{policy}/{each}" for policy in policies for each in keeps or ("keys", "forgets")}


@pytest.fixture
def providers() -> Iterator[list[Provider]]:
    made: list[Provider] = []
    yield made
    for provider in made:
        if provider.frozen is not None:
            os.kill(provider.frozen, signal.SIGCONT)
        provider.close()


def begin(providers: list[Provider], moment: str, fault: str, cells: set[str], **given: Any) -> Provider:
    provider = Provider(moment=moment, fault=fault, cells=cells)
    providers.append(provider)
    enqueue(provider, cells, **given)
    return provider


def enqueue(
    provider: Provider, cells: Iterable[str], *, swallow: bool = False, max_run_seconds: int | None = None
) -> None:
    for cell in sorted(cells):
        task = getattr(matrix_tasks, cell.split("/")[0])
        task.using(max_run_seconds=max_run_seconds).enqueue(provider.url, cell, swallow)


def until_ended(database: Database, provider: Provider) -> dict[str, str]:
    """Wait until every job has ended or waits for a person, and return where each cell stands."""
    until(lambda: database.value(f"SELECT bool_and({ENDED}) FROM pgqueue_job"), within_seconds=90)
    until(lambda: provider.answering == 0 or provider.frozen, what="the provider has answered all")
    rows = database.rows(
        "SELECT payload.args ->> 1, job.state FROM pgqueue_job AS job JOIN pgqueue_jobpayload AS payload"
        " ON payload.job_id = job.id ORDER BY 1"
    )
    return dict(rows)


def effects(provider: Provider, cell: str) -> int:
    """Count what happened: at the provider, or as rows of a transactional task."""
    if cell.startswith("transactional"):
        return Queue.objects.filter(name__startswith=f"{cell}:").count()
    return len(provider.effects[cell])


def conclude(fault: str, moment: str, provider: Provider, states: dict[str, str], *, promised: bool = True) -> None:
    """Print the row as the docs have it, and hold it against them and against what is promised."""
    assert set(provider.stages) <= {"outcome_unknown"}
    assert len(provider.stages) == sum(n for cell, n in provider.requests.items() if "transactional" not in cell)
    lines = []
    for keeps in sorted({cell.split("/")[1] for cell in states}, key=list(KEEPS).index):
        found = [f"{policy}/{keeps}" for policy in POLICIES]
        counts = [(cell, provider.requests[cell], effects(provider, cell)) for cell in found if cell in states]
        told = {cell: f"{requests}/{effects} {states[cell]}" for cell, requests, effects in counts}
        row = [fault, MOMENTS[moment], KEEPS[keeps], *(told.get(cell, "-") for cell in found)]
        lines.append("| " + " | ".join(row) + " |")
        for cell, requests, happened in counts:
            assert happened <= 1 or cell == "idempotent/forgets" or not promised, cell
            assert happened or states[cell] != "succeeded" or not requests, f"{cell} succeeded without an effect"
    print("\n".join(lines))
    page = PAGE.read_text()
    assert [line for line in lines if line not in page] == []


@moments("inside", "confirming")
def test_killed(moment: str, workers: Workers, database: Database, providers: list[Provider]) -> None:
    provider = begin(providers, moment, "kill", cells(moment))
    killed = workers.start(settings=SETTINGS)
    assert killed.wait(within_seconds=90) == -signal.SIGKILL
    provider.go_on.set()
    workers.start(settings=SETTINGS)
    states = until_ended(database, provider)
    conclude("killed", moment, provider, states)


@moments("inside", "stored")
def test_frozen_past_the_lease(moment: str, workers: Workers, database: Database, providers: list[Provider]) -> None:
    """Another worker decides meanwhile; then the first goes on, and nothing of it counts.

    Inside the call is the one place where that is not promised: the old request arrives when all is over. A provider
    that checks fences refuses it.
    """
    keeps = ("keys", "forgets", "fences") if moment == "inside" else ("keys", "forgets")
    provider = begin(providers, moment, "freeze", cells(moment, *keeps))
    frozen = workers.start(settings=SETTINGS)
    until(lambda: provider.frozen, within_seconds=90, what="the provider freezes the worker")
    workers.start(settings=SETTINGS)
    until_ended(database, provider)
    provider.go_on.set()
    frozen.send(signal.SIGCONT)
    provider.frozen = None
    frozen.wait(within_seconds=90)
    states = until_ended(database, provider)
    conclude("frozen past the lease", moment, provider, states, promised=moment != "inside")
    fenced = [cell for cell in states if cell.endswith("fences")]
    assert [cell for cell in fenced if effects(provider, cell) > 1] == []


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER], ids=lambda fault: fault.name.lower())
@moments("after", "confirming")
def test_the_connection_is_cut_at_the_commit(
    moment: str, fault: Fault, workers: Workers, database: Database, providers: list[Provider], proxy: Proxy
) -> None:
    """One cell after the other: the COMMIT of its next write never arrives, or its answer does not."""
    provider = Provider(moment=moment, fault="", cells=set())
    providers.append(provider)
    workers.start(settings={**SETTINGS, "LEASE_SECONDS": 30}, url=proxy.url())
    for cell in sorted(cells(moment)):
        marker = ENDING_ALONE if cell.startswith("transactional") else COMMITS[moment]
        plan = provider.act_on(cell, lambda marker=marker: proxy.plan(marker, fault))
        enqueue(provider, [cell])
        states = until_ended(database, provider)
        assert plan().happened.is_set(), f"{cell}: nothing was cut"
    told = "never arrives" if fault is Fault.CUT_BEFORE else "is not answered"
    conclude(f"cut: the COMMIT {told}", moment, provider, states)
    assert Job.objects.filter(lease_losses__gt=0).count() == 0


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
@moments("after")
def test_an_exception(
    moment: str, swallow: bool, workers: Workers, database: Database, providers: list[Provider]
) -> None:
    provider = begin(providers, moment, "drop", cells(moment), swallow=swallow)
    workers.start(settings=SETTINGS)
    states = until_ended(database, provider)
    conclude("and the task caught it" if swallow else "an exception", moment, provider, states)


@moments("inside")
def test_timed_out_with_a_live_worker(
    moment: str, workers: Workers, database: Database, providers: list[Provider]
) -> None:
    provider = begin(providers, moment, "stall", cells(moment), max_run_seconds=MAX_RUN_SECONDS)
    worker = workers.start(settings=SETTINGS)
    worker.until_says("job.timed_out", within_seconds=60)
    until(lambda: worker.log().count("job.timed_out") == len(cells(moment)), within_seconds=30)
    provider.go_on.set()
    states = until_ended(database, provider)
    conclude("timed out", moment, provider, states)
