"""The laboratory's checker finds each kind of fault that is planted in a run's records, and nothing in a clean one."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from tests.faults.lab.checker import Evidence, Move, Row, check, recovery_seconds
from tests.faults.lab.ledger import Entry, note, read

PAID, PLAIN, CLOSED, ASKED = 1, 2, 3, 4


def moves_of(job: int, *states: str, fence: int) -> list[Move]:
    """Return the moves of one job; each claim has the next fence."""
    found: list[Move] = []
    old: str | None = None
    old_fence = version = 0
    for state in states:
        new_fence = fence if state == "running" else old_fence
        fence += state == "running"
        found.append(Move(job, old, state, old_fence, new_fence, version, version + 1, at=float(version)))
        old, old_fence, version = state, new_fence, version + 1
    return found


def clean() -> Evidence:
    """Return a run in which nothing went wrong: one loss, one wait for a person, and one job of each kind."""
    return Evidence(
        ledger=[
            *(Entry("enqueued", 0.0, {"job": job}) for job in (PAID, PLAIN, CLOSED, ASKED)),
            *(Entry("request", 1.0, {"job": job}) for job in (PAID, ASKED)),
            *(Entry("effect", 1.0, {"job": job}) for job in (PAID, ASKED)),
            *(Entry("ran", 2.0, {"job": job}) for job in (PAID, PLAIN, CLOSED)),
        ],
        rows=[
            Row(PAID, "succeeded", "probe", calls=True, writes=True),
            Row(PLAIN, "succeeded", "idempotent", calls=False, writes=False, losses=1),
            Row(CLOSED, "succeeded", "transactional", calls=False, writes=True),
            Row(ASKED, "unknown", "manual", calls=True, writes=True, account="waits for a person", losses=1),
        ],
        moves=[
            *moves_of(PAID, "pending", "running", "succeeded", fence=10),
            *moves_of(PLAIN, "pending", "running", "retrying", "running", "succeeded", fence=20),
            *moves_of(CLOSED, "pending", "running", "succeeded", fence=30),
            *moves_of(ASKED, "pending", "running", "unknown", fence=40),
        ],
        written={PAID: 1, CLOSED: 1},
        lost_attempts=2,
    )


def without(evidence: Evidence, kind: str, job: int) -> Evidence:
    ledger = [entry for entry in evidence.ledger if (entry.kind, entry.facts["job"]) != (kind, job)]
    assert len(ledger) == len(evidence.ledger) - 1
    return dataclasses.replace(evidence, ledger=ledger)


def with_entry(evidence: Evidence, kind: str, job: int) -> Evidence:
    return dataclasses.replace(evidence, ledger=[*evidence.ledger, Entry(kind, 9.0, {"job": job})])


def with_row(evidence: Evidence, job: int, **changed: Any) -> Evidence:
    rows = [dataclasses.replace(row, **changed) if row.job_id == job else row for row in evidence.rows]
    return dataclasses.replace(evidence, rows=rows)


def with_moves(evidence: Evidence, job: int, *moves: Move) -> Evidence:
    others = [move for move in evidence.moves if move.job_id != job]
    return dataclasses.replace(evidence, moves=[*others, *moves])


def with_written(evidence: Evidence, job: int, times: int) -> Evidence:
    return dataclasses.replace(evidence, written={**evidence.written, job: times})


def gone(evidence: Evidence, job: int) -> Evidence:
    rows = [row for row in evidence.rows if row.job_id != job]
    return dataclasses.replace(evidence, rows=rows)


def changed_move(evidence: Evidence, job: int, number: int, **changed: Any) -> Evidence:
    moves = [move for move in evidence.moves if move.job_id == job]
    moves[number] = dataclasses.replace(moves[number], **changed)
    return with_moves(evidence, job, *moves)


def ends_as(evidence: Evidence, job: int, state: str) -> Evidence:
    """Let the job have come to that state, in its row and in its last move."""
    return changed_move(with_row(evidence, job, state=state), job, -1, new_state=state)


def test_a_clean_run_has_no_findings() -> None:
    found = check(clean())
    assert found.all() == []
    assert (found.jobs, found.moves, found.takeovers, found.waits_for_person) == (4, 14, 2, 1)


PLANTED = {
    "a row is gone": ("lost", lambda run: gone(run, PAID)),
    "succeeded without having run": ("lost", lambda run: without(run, "ran", PLAIN)),
    "succeeded without its effect": ("lost", lambda run: without(run, "effect", PAID)),
    "succeeded without its author's row": ("lost", lambda run: with_written(run, PAID, 0)),
    "dead though nobody gave it up": ("lost", lambda run: ends_as(run, PLAIN, "dead")),
    "a takeover without a trace": ("lost", lambda run: dataclasses.replace(run, lost_attempts=1)),
    "a second effect": ("doubled", lambda run: with_entry(run, "effect", PAID)),
    "a second effect of what waits for a person": ("doubled", lambda run: with_entry(run, "effect", ASKED)),
    "a second row of a transaction": ("doubled", lambda run: with_written(run, CLOSED, 2)),
    "a second confirmation": ("doubled", lambda run: with_written(run, PAID, 2)),
    "a committed transaction of an unfinished job": (
        "doubled",
        lambda run: ends_as(with_row(run, CLOSED, account="due later"), CLOSED, "retrying"),
    ),
    "a job that nobody will run": ("stuck", lambda run: ends_as(run, PLAIN, "retrying")),
    "a lease that never ends": (
        "stuck",
        lambda run: with_moves(
            with_row(run, PLAIN, state="running", account="leased"),
            PLAIN,
            *moves_of(PLAIN, "pending", "running", fence=9),
        ),
    ),
    "claimable, and nobody claims": (
        "stuck",
        lambda run: ends_as(with_row(run, PLAIN, account="claimable"), PLAIN, "retrying"),
    ),
    "a probed job that waits for a person": ("stuck", lambda run: with_row(run, ASKED, recovery="probe")),
    "a probe that nobody makes": (
        "stuck",
        lambda run: with_row(run, ASKED, recovery="probe", account="overdue for a probe"),
    ),
    "no such transition": (
        "illegal",
        lambda run: with_moves(run, PLAIN, *moves_of(PLAIN, "pending", "succeeded", fence=9)),
    ),
    "a move that starts elsewhere": (
        "illegal",
        lambda run: changed_move(run, PLAIN, 3, old_state="pending"),
    ),
    "inserted as running": ("illegal", lambda run: with_moves(run, PLAIN, *moves_of(PLAIN, "running", fence=9)[:1])),
    "a row that says something else": (
        "illegal",
        lambda run: with_row(run, ASKED, state="retrying", account="due later"),
    ),
    "a row that was never inserted": ("illegal", lambda run: with_moves(run, PLAIN)),
    "a move without a new version": ("illegal", lambda run: changed_move(run, PAID, 2, new_version=2)),
    "a fence that went back": ("went_back", lambda run: changed_move(run, PAID, 2, new_fence=3)),
    "a version that went back": ("went_back", lambda run: changed_move(run, PAID, 2, new_version=1)),
    "a claim with the old fence": ("went_back", lambda run: changed_move(run, PAID, 1, new_fence=0)),
    "two claims with one fence": ("went_back", lambda run: changed_move(run, PAID, 1, new_fence=30)),
}


@pytest.mark.parametrize(("kind", "plant"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found(kind: str, plant: Any) -> None:
    found = check(plant(clean()))
    assert getattr(found, kind), f"nothing {kind} among {found.all()}"


def steady(*, since: float, until: float, every: float) -> list[float]:
    return [since + number * every for number in range(int((until - since) / every))]


@pytest.mark.parametrize(("pause", "expected"), [(0.0, 0.0), (3.0, 3.0), (100.0, None)])
def test_recovery_is_the_time_to_the_old_throughput(pause: float, expected: float | None) -> None:
    done = [*steady(since=0, until=10, every=0.05), *steady(since=15 + pause, until=40, every=0.05)]
    found = recovery_seconds(done, offered=20, calm_since=0, fault_since=10, fault_until=15, until=40)
    assert found == expected


def test_a_throughput_that_stays_below_is_no_recovery() -> None:
    done = [*steady(since=0, until=10, every=0.05), *steady(since=15, until=40, every=0.06)]
    assert recovery_seconds(done, offered=20, calm_since=0, fault_since=10, fault_until=15, until=40) is None


def test_the_ledger_keeps_lines_of_many_processes_apart(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    children = []
    for number in range(4):
        if (child := os.fork()) == 0:
            for line in range(25):
                note(ledger, "ran", job=number * 100 + line)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    entries = read(ledger)
    assert sorted(entry.facts["job"] for entry in entries) == [n * 100 + line for n in range(4) for line in range(25)]


def test_a_backlog_before_the_fault_is_no_measure() -> None:
    done = [*steady(since=0, until=10, every=0.01), *steady(since=15, until=40, every=0.05)]
    assert recovery_seconds(done, offered=20, calm_since=0, fault_since=10, fault_until=15, until=40) == 0.0
