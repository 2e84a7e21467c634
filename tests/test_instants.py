"""Every time that an application sees is of the kind that `timezone.now()` gives it, with and without USE_TZ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from pgqueue import enqueue_many
from pgqueue.backend import PGQueueBackend
from pgqueue.compat import task_enqueued, task_finished, task_started
from pgqueue.instants import as_project
from pgqueue.models import Effect
from pgqueue.probes import Happened
from pgqueue.probing import ask_next
from pgqueue.protocol.connecting import connect
from tests.inline import row, work, work_through_retries
from tests.testapp import contract_tasks, effect_tasks
from tests.testapp.contract_tasks import double

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

FIELDS = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")


@pytest.fixture(params=[True, False], ids=["USE_TZ", "no USE_TZ"], autouse=True)
def zone(request: pytest.FixtureRequest) -> Iterator[None]:
    with override_settings(USE_TZ=request.param, TIME_ZONE="America/New_York"):
        connection.close()
        yield
    connection.close()


@pytest.fixture
def told() -> Iterator[dict[str, Any]]:
    """The last result that each signal told."""
    told: dict[str, Any] = {}

    def hear(name: str) -> Callable[..., None]:
        def receive(task_result: Any, **given: Any) -> None:
            told[name] = {field: getattr(task_result, field) for field in FIELDS}

        return receive

    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = {name: hear(name) for name in signals}
    for name, signal in signals.items():
        signal.connect(receivers[name], sender=PGQueueBackend)
    yield told
    for name, signal in signals.items():
        signal.disconnect(receivers[name], sender=PGQueueBackend)


def is_the_projects(at: datetime) -> bool:
    """Subtracting two kinds raises TypeError."""
    return abs(timezone.now() - at) < timedelta(minutes=5)


def times_of(result: Any) -> list[datetime]:
    return [at for field in FIELDS if (at := getattr(result, field)) is not None]


def test_in_the_caller_and_in_what_is_read_back() -> None:
    results = [double.enqueue(number) for number in range(8)]  # The later ones go a shorter way.
    results += map(double.get_result, map(str, enqueue_many([double.bind(1)])))
    assert all(is_the_projects(result.enqueued_at) for result in results)
    assert work() == 0
    for result in results:
        result.refresh()
        assert len(times_of(result)) == 4
        assert all(map(is_the_projects, times_of(result)))
        assert result.enqueued_at <= result.started_at <= result.finished_at


def test_in_the_task() -> None:
    def latency(context: Any) -> float:
        result = context.task_result
        assert all(map(is_the_projects, times_of(result)))
        return (result.started_at - result.enqueued_at).total_seconds()

    effect_tasks.script["run"] = latency
    result = effect_tasks.undeclared.enqueue()
    assert work() == 0
    assert row(result.id).state == "succeeded"


@pytest.mark.parametrize(
    ("task", "args"),
    [
        (double, [1]),
        (contract_tasks.fail_once, []),
        (contract_tasks.fail_deep, ["x"]),
        (contract_tasks.attempt_later, []),
    ],
    ids=["succeeds", "fails", "fails after a retry", "async"],
)
def test_in_receivers(told: dict[str, Any], task: Any, args: list[Any]) -> None:
    task.enqueue(*args)
    work_through_retries()
    assert set(told) == {"enqueued", "started", "finished"}
    for times in told.values():
        assert all(is_the_projects(at) for at in times.values() if at is not None)
    finished = told["finished"]
    assert None not in finished.values()
    assert finished["enqueued_at"] <= finished["started_at"] <= finished["finished_at"]


def test_in_a_probe() -> None:
    def answer(context: Any, effect: Any) -> Happened:
        assert is_the_projects(effect.first_called_at)
        assert is_the_projects(effect.called_at)
        return Happened("seen")

    remote = effect_tasks.Remote()
    remote.answers = [TimeoutError("no answer")]
    effect_tasks.script["run"] = lambda context: context.effect("pay", remote)
    effect_tasks.script["ask"] = answer
    effect_tasks.probed.enqueue()
    assert work() == 0
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET probe_at = statement_timestamp() - interval '1 hour'")
    with connect("default", role="worker") as worker:

        class Lent:
            def __enter__(self) -> Any:
                return worker

            def __exit__(self, *args: Any) -> None:
                worker.commit()

        ask_next(Lent, worker_id=1, tasks=[effect_tasks.probed.module_path])
    assert Effect.objects.get().result == "seen"


@pytest.mark.parametrize("is_aware", [True, False])
def test_run_after_takes_either_kind(is_aware: bool, settings: Any) -> None:
    if settings.USE_TZ and not is_aware:
        pytest.skip("Django refuses it")
    due = datetime.now(UTC) + timedelta(hours=1)
    given = due if is_aware else timezone.make_naive(due, timezone.get_default_timezone())
    result = double.using(run_after=given).enqueue(1)
    assert row(result.id).run_at == as_project(due)
