"""The fault matrix: what each policy makes of each fault at each moment, counted by the provider.

Every cell is one job of its own; the cells of a row share one worker, and so one signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pgqueue.models import Queue
from tests.testapp import matrix_tasks

from .harness import Database, Workers, until
from .provider import Provider

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

POLICIES = ("idempotent", "probed", "manual", "undeclared")
CELLS = {f"{policy}/{keys}" for policy in POLICIES for keys in ("keys", "forgets")}
MOMENTS = ("before", "inside", "after", "stored", "confirming")
SETTINGS = {"LEASE_SECONDS": 3, "CONCURRENCY": 10, "KILL_GRACE_SECONDS": 20, "BACKOFF_BASE_SECONDS": 0.1}
ENDED = "state IN ('succeeded', 'dead', 'cancelled') OR (state = 'unknown' AND probe_at IS NULL)"


@pytest.fixture
def providers() -> Iterator[list[Provider]]:
    made: list[Provider] = []
    yield made
    for provider in made:
        if provider.frozen is not None:
            os.kill(provider.frozen, signal.SIGCONT)
        provider.close()


def begin(providers: list[Provider], moment: str, fault: str, cells: set[str], *, swallow: bool = False) -> Provider:
    provider = Provider(moment=moment, fault=fault, cells=cells)
    providers.append(provider)
    for cell in sorted(cells):
        getattr(matrix_tasks, cell.split("/")[0]).enqueue(provider.url, cell, swallow)
    return provider


def until_ended(database: Database) -> dict[str, str]:
    """Wait until every job has ended or waits for a person, and return where each cell stands."""
    until(lambda: database.value(f"SELECT bool_and({ENDED}) FROM pgqueue_job"), within_seconds=90)
    rows = database.rows(
        "SELECT payload.args ->> 1, job.state FROM pgqueue_job AS job JOIN pgqueue_jobpayload AS payload"
        " ON payload.job_id = job.id ORDER BY 1"
    )
    return dict(rows)


def tell(title: str, provider: Provider, states: dict[str, str]) -> None:
    print(f"{title}: stages seen {sorted(provider.stages)}")
    for cell, state in states.items():
        print(f"  {cell:22} requests={provider.requests[cell]} effects={len(provider.effects[cell])} {state}")


def assert_no_second_effect(provider: Provider, states: dict[str, str], *, but: set[str]) -> None:
    assert provider.stages <= {"outcome_unknown"}
    for cell, state in states.items():
        assert len(provider.effects[cell]) <= 1 or cell in but, cell
        if state == "succeeded":
            assert provider.effects[cell], f"{cell} succeeded without an effect"


def expected_state(cell: str, moment: str) -> str:
    """Return where the decision table leads: what was called and is not known waits for a person, or is asked about."""
    waits = moment in ("inside", "after") and cell.split("/")[0] in ("manual", "undeclared")
    return "unknown" if waits else "succeeded"


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed(moment: str, workers: Workers, database: Database, providers: list[Provider]) -> None:
    provider = begin(providers, moment, "kill", CELLS)
    killed = workers.start(settings=SETTINGS)
    assert killed.wait(within_seconds=90) == -signal.SIGKILL
    provider.go_on.set()
    workers.start(settings=SETTINGS)
    states = until_ended(database)
    tell(f"killed {moment}", provider, states)
    assert_no_second_effect(provider, states, but={"idempotent/forgets"})
    assert states == {cell: expected_state(cell, moment) for cell in CELLS}


@pytest.mark.parametrize("moment", MOMENTS)
def test_frozen_past_the_lease(moment: str, workers: Workers, database: Database, providers: list[Provider]) -> None:
    """Another worker decides meanwhile; then the first goes on, and nothing of it counts.

    The call under way is of no avail either: its provider was asked before it froze. Where it checks no fences and
    forgets keys, a replay beside it is not promised to be the only one.
    """
    provider = begin(providers, moment, "freeze", CELLS)
    frozen = workers.start(settings=SETTINGS)
    until(lambda: provider.frozen, within_seconds=90, what="the provider freezes the worker")
    workers.start(settings=SETTINGS)
    lost = "SELECT count(*) FROM pgqueue_attempt WHERE outcome = 'lost'"
    until(lambda: database.value(lost) == len(CELLS), within_seconds=60, what="all are taken over")
    provider.go_on.set()
    frozen.send(signal.SIGCONT)
    provider.frozen = None
    states = until_ended(database)
    frozen.wait(within_seconds=90)
    tell(f"frozen {moment}", provider, states)
    but = {"idempotent/forgets"} | ({"probed/keys", "probed/forgets"} if moment == "inside" else set())
    assert_no_second_effect(provider, states, but=but)


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize("moment", ["inside", "after"])
def test_an_exception(
    moment: str, swallow: bool, workers: Workers, database: Database, providers: list[Provider]
) -> None:
    provider = begin(providers, moment, "drop", CELLS, swallow=swallow)
    workers.start(settings=SETTINGS)
    states = until_ended(database)
    tell(f"{'swallowed' if swallow else 'raised'} {moment}", provider, states)
    assert_no_second_effect(provider, states, but={"idempotent/forgets"})
    assert states == {cell: expected_state(cell, moment) for cell in CELLS}


@pytest.mark.parametrize("moment", ["inside", "after"])
def test_timed_out_with_a_live_worker(
    moment: str, workers: Workers, database: Database, providers: list[Provider]
) -> None:
    provider = begin(providers, moment, "stall", CELLS)
    worker = workers.start(settings=SETTINGS)
    worker.until_says("job.timed_out", within_seconds=60)
    until(lambda: worker.log().count("job.timed_out") == len(CELLS), within_seconds=30)
    provider.go_on.set()
    states = until_ended(database)
    tell(f"timed out {moment}", provider, states)
    assert_no_second_effect(provider, states, but={"idempotent/forgets"})
    assert states == {cell: expected_state(cell, moment) for cell in CELLS}


@pytest.mark.case("B20")
def test_a_transactional_body_that_is_killed_leaves_one_row(
    workers: Workers, database: Database, providers: list[Provider]
) -> None:
    provider = begin(providers, "after", "kill", {"transactional/keys"})
    killed = workers.start(settings=SETTINGS)
    assert killed.wait(within_seconds=90) == -signal.SIGKILL
    provider.go_on.set()
    workers.start(settings=SETTINGS)
    assert until_ended(database) == {"transactional/keys": "succeeded"}
    assert Queue.objects.filter(name__startswith="transactional/keys:").count() == 1
    assert provider.requests["transactional/keys"] == 2


def test_a_request_frozen_on_its_way_is_refused_by_a_provider_that_checks_fences(
    workers: Workers, database: Database, providers: list[Provider]
) -> None:
    """It forgets keys. The replay arrives first, with a larger fence; then the old request does."""
    cell = "idempotent/fences"
    provider = begin(providers, "inside", "freeze", {cell})
    frozen = workers.start(settings=SETTINGS)
    until(lambda: provider.frozen, within_seconds=90, what="the provider freezes the worker")
    workers.start(settings=SETTINGS)
    assert until_ended(database) == {cell: "succeeded"}
    provider.go_on.set()
    frozen.send(signal.SIGCONT)
    provider.frozen = None
    frozen.wait(within_seconds=90)
    assert (provider.requests[cell], len(provider.effects[cell])) == (2, 1)
    assert provider.refused == [cell]
