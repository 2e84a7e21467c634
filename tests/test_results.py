"""A job in the words of Django Tasks, from rows alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgqueue.compat import TaskResult, TaskResultStatus
from pgqueue.protocol.claiming import Lease
from pgqueue.protocol.reading import AttemptRow, JobRow
from pgqueue.protocol.settling import Ending, EndingKind, Written
from pgqueue.results import STATUSES, enqueued, finished, started, stored
from pgqueue.states import FINAL, State
from tests.testapp.contract_tasks import give_back

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def _job(**fields: Any) -> JobRow:
    plain: dict[str, Any] = {
        **dict.fromkeys(("worker_id", "settled_by", "claimed_at", "started_at", "finished_at")),
        **dict.fromkeys(("args", "kwargs", "result")),
        **{"id": 2**53 + 1, "task": give_back.module_path, "state": "pending", "queue": "default", "priority": 0},
        **{"fence": 0, "attempts": 0, "created_at": NOON},
    }
    return JobRow(**(plain | fields))


def _attempt(fence: int, outcome: str, **fields: Any) -> AttemptRow:
    plain: dict[str, Any] = {
        **{"fence": fence, "worker_id": fence, "claimed_at": _later(fence), "started_at": _later(fence)},
        **{"outcome": outcome, "error_class": None, "traceback": ""},
    }
    return AttemptRow(**(plain | fields))


def _stored(job: JobRow, *attempts: AttemptRow) -> TaskResult:
    return stored(give_back, job, attempts)


def test_every_state_has_a_status_and_the_final_ones_are_finished() -> None:
    assert set(STATUSES) == set(State)
    finished_states = {
        state for state, status in STATUSES.items() if status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
    }
    assert finished_states == set(FINAL)


@pytest.mark.parametrize("state", ["zzz", "", "SUCCEEDED"])
@pytest.mark.case("I04")
def test_a_state_of_a_newer_version_counts_as_running(state: str) -> None:
    assert _stored(_job(state=state)).status == TaskResultStatus.RUNNING


def test_an_id_stays_exact() -> None:
    assert _stored(_job()).id == "9007199254740993"


def test_the_value_is_read_for_a_success_only() -> None:
    assert _stored(_job(state="succeeded", result='{"a": 1}', finished_at=NOON)).return_value == {"a": 1}
    assert _stored(_job(state="dead", result="1", finished_at=NOON))._return_value is None


def test_a_first_success_is_told_by_the_job_row_alone() -> None:
    job = _job(state="succeeded", fence=5, settled_by=7, claimed_at=_later(1), started_at=_later(2), attempts=1)
    result = _stored(job)
    assert (result.worker_ids, result.started_at, result.last_attempted_at) == (["7"], _later(2), _later(2))


def test_a_later_success_is_told_once() -> None:
    job = _job(state="succeeded", fence=2, settled_by=2, claimed_at=_later(2), started_at=_later(2), attempts=2)
    result = _stored(job, _attempt(1, "failed", error_class="builtins.OSError"), _attempt(2, "succeeded"))
    assert result.worker_ids == ["1", "2"]
    assert [error.exception_class for error in result.errors] == [OSError]
    assert result.started_at == _later(1)


def test_a_success_after_a_requeue_counts_the_attempt_that_has_no_row() -> None:
    job = _job(state="succeeded", fence=9, settled_by=3, claimed_at=_later(9), started_at=_later(9), attempts=2)
    assert _stored(job, _attempt(1, "failed")).worker_ids == ["1", "3"]


def test_a_lost_attempt_never_said_when_it_started() -> None:
    job = _job(state="retrying", fence=2, claimed_at=_later(1))
    result = _stored(job, _attempt(1, "lost", started_at=None, error_class="pgqueue.exceptions.JobLostError"))
    assert (result.status, result.started_at, result.last_attempted_at) == (TaskResultStatus.READY, None, _later(1))
    assert result.attempts == len(result.errors) == 1


def test_a_released_job_was_not_attempted() -> None:
    result = _stored(_job(state="pending", fence=3, settled_by=8))
    assert (result.attempts, result.last_attempted_at, result.errors) == (0, None, [])


def test_an_attempt_without_an_error_class_still_names_an_exception() -> None:
    result = _stored(_job(state="dead", finished_at=NOON), _attempt(1, "failed"))
    assert result.errors[0].exception_class is Exception


def _lease(**fields: Any) -> Lease:
    plain: dict[str, Any] = {
        **dict.fromkeys(("id", "worker_id", "fence"), 7),
        **dict.fromkeys(("priority", "lane", "attempts", "lease_losses"), 0),
        **dict.fromkeys(("max_run_seconds", "tenant", "shard_key", "operation_key", "kwargs")),
        **{"version": 2, "queue": "default", "task": give_back.module_path, "recovery": "undeclared"},
        **{"max_attempts": 8, "created_epoch": NOON.timestamp(), "run_epoch": NOON.timestamp(), "args": "[1]"},
    }
    return Lease(**(plain | fields))


def test_a_started_result_has_one_worker_id_an_attempt() -> None:
    result = started(give_back, _lease(attempts=2), [1], {}, NOON)
    assert (result.attempts, result.status) == (3, TaskResultStatus.RUNNING)


def test_a_finished_result_counts_its_times_from_the_databases_instant() -> None:
    ending = Ending(EndingKind.COMPLETE, 7, 7, run_seconds=1.5, result="2")
    result = finished(give_back, _lease(), ending, Written(State.SUCCEEDED, _later(10)))
    assert (result.started_at, result.finished_at, result.return_value) == (_later(8.5), _later(10), 2)
    assert (result.args, result.worker_ids) == ([1], ["7"])


def test_an_enqueued_result_shares_no_argument_with_its_caller() -> None:
    args, kwargs = [[1]], {"a": [2]}
    result = enqueued(give_back, 1, NOON, args, kwargs)
    args[0].append(9)
    kwargs["a"].append(9)
    assert (result.args, result.kwargs) == ([[1]], {"a": [2]})
