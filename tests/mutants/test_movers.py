"""No statement moves a running job without its owner's fence, or the lease and the stage that decide about it."""

import re

import pytest

from tests.mutants.mutating import DIRECTORY

OWNER = ("job.fence = ending.fence", "job.worker_id = %(worker_id)s")
MOVERS = {
    "complete": OWNER,
    "retry": OWNER,
    "bury": OWNER,
    "release": OWNER,
    "complete_first": ("mine.fence = %(fence)s", "mine.worker_id = %(worker_id)s"),
    # Counts running jobs, and claims waiting ones.
    "claim_picked": ("AND coalesce(job.state IN ('pending', 'retrying'), FALSE)",),
    # The row is locked, by fence and worker, by the statement before it.
    "settle_unknown": ("The job's row is locked by `lock_owned.sql` in the same transaction",),
    "take_over": (
        "job.fence = verdict.fence",
        "job.stage = verdict.stage",
        "job.lease_until <= statement_timestamp()",
    ),
    "break_lease": (
        "job.version = %(version_seen)s",
        "job.fence = %(fence)s",
        "job.stage = %(stage)s",
        "(SELECT job.state) = 'running'",
    ),
}
"""The statements that move, or read, running jobs, and what each asks of the row."""
MOVE = re.compile(r"UPDATE pgqueue_job AS job\s+SET (?:(?!\b(?:WHERE|FROM)\b).)*?\bstate = ", re.S)
STATES = re.compile(r"job\.state\)? (?:= ('\w+')|IN \(([^)]*)\))")


def text_of(name: str) -> str:
    return (DIRECTORY / f"{name}.sql").read_text(encoding="utf-8")


MOVING = sorted(path.stem for path in DIRECTORY.glob("*.sql") if MOVE.search(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", MOVING)
def test_a_statement_that_moves_jobs_asks_whose_a_running_one_is(name: str) -> None:
    text = text_of(name)
    if name in MOVERS:
        assert [guard for guard in MOVERS[name] if guard not in text] == []
        return
    states = {state for one, many in STATES.findall(text) for state in re.findall(r"\w+", one or many)}
    assert states, f"{name}.sql moves jobs of any state"
    assert "running" not in states, f"{name}.sql moves running jobs: name what it asks of them"


def test_the_statements_that_move_jobs_are_found() -> None:
    assert set(MOVERS) <= set(MOVING)
    assert {"claim", "hold", "cancel", "requeue", "reconcile", "give_up"} <= set(MOVING)


def test_the_lock_of_an_owner_is_by_fence_and_worker() -> None:
    assert [
        guard
        for guard in ("job.fence = %(fence)s", "job.worker_id = %(worker_id)s")
        if guard not in text_of("lock_owned")
    ] == []


@pytest.mark.parametrize("path", sorted(DIRECTORY.parent.rglob("*.py")), ids=lambda path: path.stem)
def test_no_model_writes_a_job(path) -> None:
    """Nobody calls save() or update() on a job: its state is moved by the statements alone."""
    found = re.findall(
        r"\bJob\.objects\.[\w.()=]*(?:update|create|bulk_\w+|delete)\(", path.read_text(encoding="utf-8")
    )
    assert found == []
