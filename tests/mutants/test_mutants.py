"""A statement with a guard cut out still runs, and an assertion fails: so each guard is there for a reason."""

import re

import pytest
from django.db import connection

from pgqueue import operations
from pgqueue.models import Job, OperatorAction
from tests.mutants import scenarios
from tests.mutants.mutating import DIRECTORY, Mutant, Sessions, guard_of, loaded, prepare
from tests.mutants.table import MUTANTS, needs_two_sessions

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
ALONE = [mutant for mutant in MUTANTS if not needs_two_sessions(mutant)]
IN_COMPANY = [mutant for mutant in MUTANTS if needs_two_sessions(mutant)]


def notices(mutant: Mutant, sessions: Sessions) -> None:
    """Assert that the scenario fails, by an assertion, once the guard is gone."""
    texts = mutant.texts()
    for text in texts.values():
        prepare(sessions.main, text)
    with loaded(texts), pytest.raises(AssertionError):
        mutant.scenario(sessions)


@quick
@pytest.mark.parametrize("mutant", ALONE, ids=str)
def test_one_session_notices_a_missing_guard(mutant, session):
    sessions = Sessions(session)
    with session.transaction(force_rollback=True):
        mutant.scenario(sessions)
    with session.transaction(force_rollback=True):
        notices(mutant, sessions)


def forget(connection):
    connection.execute(
        "TRUNCATE pgqueue_job, pgqueue_attempt, pgqueue_operatoraction, pgqueue_queue, pgqueue_limit, "
        "pgqueue_approvalrequest, pgqueue_worker, pgqueue_window, pgqueue_minutestat"
    )


@pytest.fixture
def two_sessions(
    queue_connection, second_connection, watching_connection, in_background, wait_until_blocking
) -> Sessions:
    return Sessions(queue_connection, second_connection, in_background, wait_until_blocking, watching_connection)


@racing
@pytest.mark.parametrize("mutant", IN_COMPANY, ids=str)
def test_two_sessions_notice_a_missing_guard(mutant, two_sessions):
    mutant.scenario(two_sessions)
    forget(two_sessions.other)
    notices(mutant, two_sessions)


@racing
def test_a_replay_that_is_looked_up_before_the_lock_is_missed(two_sessions, monkeypatch):
    """The same two requests, with the look-up moved before the lock: the second answers `changed`, not `replayed`."""
    scenarios.second_of_two_equal_requests_is_a_replay(two_sessions)
    forget(two_sessions.other)
    find, lock, found = operations.operating.find_replays, operations.operating.lock_target, []

    def look_then_lock(alias, kind, id):
        found.append(find(alias, [("once", {})]))
        return lock(alias, kind, id)

    monkeypatch.setattr(operations.operating, "lock_target", look_then_lock)
    monkeypatch.setattr(operations.operating, "find_replays", lambda *args: found.pop())
    with pytest.raises(AssertionError):
        scenarios.second_of_two_equal_requests_is_a_replay(two_sessions)
    assert OperatorAction.objects.filter(outcome="changed").exists()


def covered(name):
    """Return the guards of a statement that have a mutant. A verb's lock is cut out of the statement that locks."""
    guards = {mutant.guard for mutant in MUTANTS if mutant.statement == name and ": " not in mutant.guard}
    return guards | {
        mutant.guard.removeprefix(f"{name}: ") for mutant in MUTANTS if mutant.guard.startswith(f"{name}: ")
    }


@pytest.mark.parametrize("name", sorted(path.stem for path in DIRECTORY.glob("*.sql")))
def test_every_guard_of_a_header_has_a_mutant(name):
    """Take away what the mutants cover: only an explanation in parentheses or after a comma may be left."""
    left = guard_of(name)
    for guard in sorted(filter(None, covered(name)), key=len, reverse=True):
        assert guard in guard_of(name), f"{name}.sql names no guard {guard!r}"
        left = re.sub(rf"(?<!\w){re.escape(guard)}(?!\w)", "", left, count=1)
    left = left.replace(EXPLAINED.get(name, ""), "")
    assert re.sub(r"[\s,;:.]", "", left) == "", f"no mutant of {name}.sql covers {left!r}"


IN_ITS_SNAPSHOT = (
    " in the snapshot of this statement, so that a pause or a limit holds for every claim begun after its commit"
)
EXPLAINED = {
    "claim": IN_ITS_SNAPSHOT,
    "claim_behind": IN_ITS_SNAPSHOT,
    "claim_picked": ", or bounds nothing",
    "renew": " (a row that is being settled is not lost: it is asked again)",
}


def test_a_mutant_that_changes_nothing_is_a_mistake_in_the_table():
    with pytest.raises(AssertionError, match="has no"):
        Mutant("claim", "due", (("AND job.run_at < never", ""),), scenarios.claim_passes_over_a_lock).texts()


@quick
def test_the_real_statements_are_loaded_again_afterwards(session):
    job = Job.objects.count()
    with loaded({"claim": "SELECT 1"}):
        pass
    assert "WITH RECURSIVE" in scenarios.load("claim")
    assert job == 0
    assert connection.connection is session
