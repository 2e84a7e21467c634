"""Operators against each other, against workers, and against locks that nobody gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.db import transaction as django_transaction
from django.db.transaction import TransactionManagementError

from pgqueue.models import Job, OperatorAction, Queue
from pgqueue.operations import Action, act
from pgqueue.protocol import operating
from pgqueue.protocol.claiming import claim
from pgqueue.protocol.looking import look
from pgqueue.protocol.settling import Ending, EndingKind, settle
from pgqueue.refusals import IdempotencyKeyReusedError
from pgqueue.states import Lane, Outcome, State
from tests.factories import JobFactory, QueueFactory

from .conftest import OPERATOR, PATIENCE_SECONDS, Connection, Stop
from .rows import WORKER, add_jobs, claimant, snapshot

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

ActInBackground = Callable[..., Future[Action]]
Wait = Callable[..., None]


def act_now(verb: str, target: int | str, version_seen: int | None, **given: Any) -> Action:
    return act(verb, target, version_seen=version_seen, actor=OPERATOR, reason="a race", **given)


def outcomes() -> list[str]:
    return list(OperatorAction.objects.order_by("id").values_list("outcome", flat=True))


# -- two operators, one target -----------------------------------------------------------------------------


@pytest.mark.usefixtures("patient_locks")
def test_the_second_of_two_operators_waits_and_finds_the_job_changed(
    act_in_background: ActInBackground, stopped_before_commit: Stop, wait_until_sessions_wait: Wait
) -> None:
    job = JobFactory()
    first = act_in_background("hold", job.id, version_seen=job.version)
    stopped_before_commit.wait_until_reached()
    second = act_in_background("cancel", job.id, version_seen=job.version)
    wait_until_sessions_wait(1)
    stopped_before_commit.release()

    assert first.result().outcome == Outcome.APPLIED
    assert second.result().outcome == Outcome.CHANGED
    assert (second.result().state_found, second.result().version_found) == (State.PAUSED, job.version + 1)
    row = Job.objects.get()
    assert (row.state, row.version) == (State.PAUSED, job.version + 1)
    assert outcomes() == [Outcome.APPLIED, Outcome.CHANGED]


@pytest.mark.usefixtures("patient_locks")
def test_the_second_of_two_operators_is_applied_when_the_first_rolls_back(
    act_in_background: ActInBackground, wait_until_sessions_wait: Wait, queue_connection: Connection
) -> None:
    job = JobFactory()
    with queue_connection.transaction(force_rollback=True):
        queue_connection.execute(
            "UPDATE pgqueue_job SET state = 'paused', held_from = 'pending', version = version + 1 WHERE id = %s",
            [job.id],
        )
        second = act_in_background("cancel", job.id, version_seen=job.version)
        wait_until_sessions_wait(1)
    assert second.result().outcome == Outcome.APPLIED


@pytest.mark.usefixtures("patient_locks")
def test_two_operators_pause_a_queue_that_has_no_row_yet(
    act_in_background: ActInBackground, stopped_before_commit: Stop, wait_until_sessions_wait: Wait
) -> None:
    """The second waits for the insertion of the row, and then sees what the first made of it."""
    first = act_in_background("pause_queue", "mail", version_seen=0)
    stopped_before_commit.wait_until_reached()
    second = act_in_background("pause_queue", "mail", version_seen=0)
    wait_until_sessions_wait(1)
    stopped_before_commit.release()
    assert first.result().outcome == Outcome.APPLIED
    assert second.result().outcome == Outcome.CHANGED
    assert (second.result().state_found, second.result().version_found) == ("paused", 1)


@pytest.mark.usefixtures("patient_locks")
def test_the_second_of_two_operators_of_a_queue_waits_and_finds_it_changed(
    act_in_background: ActInBackground, stopped_before_commit: Stop, wait_until_sessions_wait: Wait
) -> None:
    queue = QueueFactory(paused=True)
    first = act_in_background("resume_queue", queue.name, version_seen=queue.version)
    stopped_before_commit.wait_until_reached()
    second = act_in_background("resume_queue", queue.name, version_seen=queue.version)
    wait_until_sessions_wait(1)
    stopped_before_commit.release()
    assert first.result().outcome == Outcome.APPLIED
    assert second.result().outcome == Outcome.CHANGED
    assert (second.result().state_found, second.result().version_found) == ("active", queue.version + 1)


@pytest.mark.usefixtures("patient_locks")
@pytest.mark.parametrize("kind", ["job", "queue"])
def test_an_operator_who_has_the_lock_and_has_written_nothing_yet_is_waited_for(
    act_in_background: ActInBackground, stopped_after_lock: Stop, wait_until_sessions_wait: Wait, kind: str
) -> None:
    verb, target = ("hold", JobFactory().id) if kind == "job" else ("pause_queue", QueueFactory().name)
    first = act_in_background(verb, target, version_seen=1)
    stopped_after_lock.wait_until_reached()
    second = act_in_background(verb, target, version_seen=1)
    wait_until_sessions_wait(1)
    stopped_after_lock.release()
    assert (first.result().outcome, second.result().outcome) == (Outcome.APPLIED, Outcome.CHANGED)


@pytest.mark.usefixtures("patient_locks")
def test_ten_operators_at_once_apply_one_verb(act_in_background: ActInBackground) -> None:
    job = JobFactory()
    verbs = ["hold", "cancel", "give_up"] * 4
    actions = [act_in_background(verb, job.id, version_seen=job.version) for verb in verbs]
    found = Counter(action.result().outcome for action in actions)
    assert found == {Outcome.APPLIED: 1, Outcome.CHANGED: len(verbs) - 1}
    assert Job.objects.get().version == job.version + 1


# -- idempotency keys --------------------------------------------------------------------------------------


def test_the_same_key_again_is_replayed_and_not_done_twice() -> None:
    job = JobFactory()
    first = act_now("hold", job.id, job.version, idempotency_key="k")
    before = snapshot()
    second = act_now("hold", job.id, job.version, idempotency_key="k")
    assert (first.outcome, second.outcome) == (Outcome.APPLIED, Outcome.REPLAYED)
    assert second.replay is not None
    assert second.replay.id == first.audit_id
    assert second.replay.version_after == first.version_after
    assert snapshot() == before


@pytest.mark.usefixtures("patient_locks")
def test_the_same_key_while_the_first_is_open_is_replayed(
    act_in_background: ActInBackground, stopped_before_commit: Stop, wait_until_sessions_wait: Wait
) -> None:
    job = JobFactory()
    first = act_in_background("hold", job.id, version_seen=job.version, idempotency_key="k")
    stopped_before_commit.wait_until_reached()
    second = act_in_background("hold", job.id, version_seen=job.version, idempotency_key="k")
    wait_until_sessions_wait(1)
    stopped_before_commit.release()
    assert first.result().outcome == Outcome.APPLIED
    assert second.result().outcome == Outcome.REPLAYED
    assert Job.objects.get().version == job.version + 1


def test_fifty_calls_with_one_key_apply_it_once(act_in_background: ActInBackground) -> None:
    job = JobFactory()
    options = {"version_seen": job.version, "idempotency_key": "k"}
    actions = [act_in_background("hold", job.id, **options) for _ in range(50)]
    found = Counter(action.result().outcome for action in actions)
    assert found[Outcome.APPLIED] == 1
    assert set(found) <= {Outcome.APPLIED, Outcome.REPLAYED, Outcome.BUSY}
    assert found.total() == OperatorAction.objects.count() == 50
    assert act_now("hold", job.id, job.version, idempotency_key="k").outcome == Outcome.REPLAYED
    assert Job.objects.get().version == job.version + 1


def test_a_key_whose_first_use_was_refused_is_still_free() -> None:
    job = JobFactory()
    assert act_now("hold", job.id, job.version + 1, idempotency_key="k").outcome == Outcome.CHANGED
    assert act_now("hold", job.id, job.version, idempotency_key="k").outcome == Outcome.APPLIED


def test_a_replay_is_told_also_when_the_job_is_gone() -> None:
    job = JobFactory()
    act_now("hold", job.id, job.version, idempotency_key="k")
    Job.objects.all().delete()
    assert act_now("hold", job.id, job.version, idempotency_key="k").outcome == Outcome.REPLAYED


def test_an_empty_key_is_none() -> None:
    for job in add_jobs(2):
        assert act_now("hold", job.id, job.version, idempotency_key="").outcome == Outcome.APPLIED


@pytest.mark.parametrize("other", ["target", "verb", "params"])
def test_a_key_that_stands_for_another_request_is_refused(other: str) -> None:
    [first, second] = add_jobs(2)
    request: dict[str, Any] = {"version_seen": first.version, "idempotency_key": "k", "params": {"note": 1}}
    applied = act("hold", first.id, actor=OPERATOR, reason="a race", **request)
    before = snapshot()
    target = second.id if other == "target" else first.id
    verb = "cancel" if other == "verb" else "hold"
    params = {"note": 2} if other == "params" else {"note": 1}
    with pytest.raises(IdempotencyKeyReusedError, match="hold"):
        act(verb, target, actor=OPERATOR, reason="a race", **{**request, "params": params})
    assert snapshot() == before
    assert OperatorAction.objects.get().id == applied.audit_id


@pytest.mark.usefixtures("patient_locks")
def test_one_key_for_two_targets_at_once_is_applied_to_the_first(
    act_in_background: ActInBackground, stopped_before_commit: Stop, wait_until_sessions_wait: Wait
) -> None:
    """Each holds its own row; the second waits for the first one's audit row, and its own write is undone."""
    [first, second] = add_jobs(2)
    applied = act_in_background("hold", first.id, version_seen=first.version, idempotency_key="k")
    stopped_before_commit.wait_until_reached()
    refused = act_in_background("hold", second.id, version_seen=second.version, idempotency_key="k")
    wait_until_sessions_wait(1)
    stopped_before_commit.release()
    assert applied.result().outcome == Outcome.APPLIED
    with pytest.raises(IdempotencyKeyReusedError):
        refused.result()
    assert list(Job.objects.order_by("id").values_list("state", flat=True)) == [State.PAUSED, State.PENDING]


# -- locks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["job", "queue"])
def test_a_locked_row_is_busy_in_bounded_time_and_audited(
    settings: Any, queue_connection: Connection, kind: str
) -> None:
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": 0.2}
    job, queue = JobFactory(), QueueFactory()
    target = job.id if kind == "job" else queue.name
    with queue_connection.transaction():
        queue_connection.execute("SELECT FROM pgqueue_job FOR UPDATE")
        queue_connection.execute("SELECT FROM pgqueue_queue FOR UPDATE")
        action = act_now("hold" if kind == "job" else "pause_queue", target, 1)
    assert (action.outcome, action.version_found, action.state_found) == (Outcome.BUSY, None, None)
    row = OperatorAction.objects.get()
    assert (row.id, row.outcome, row.target_id, row.version_seen) == (action.audit_id, "busy", str(target), 1)
    assert Job.objects.get().version == Queue.objects.get().version == 1


def test_a_queue_row_that_another_session_is_inserting_is_busy(settings: Any, queue_connection: Connection) -> None:
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": 0.2}
    with queue_connection.transaction(force_rollback=True):
        queue_connection.execute("INSERT INTO pgqueue_queue (name, version, created_at) VALUES ('mail', 0, now())")
        assert act_now("pause_queue", "mail", 0).outcome == Outcome.BUSY
    assert act_now("pause_queue", "mail", 0).outcome == Outcome.APPLIED


def test_the_shortest_lock_timeout_is_not_none(
    settings: Any, queue_connection: Connection, act_in_background: ActInBackground
) -> None:
    """PostgreSQL takes 0 ms for no limit at all."""
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": 0.0004}
    job = JobFactory()
    with queue_connection.transaction():
        queue_connection.execute("SELECT FROM pgqueue_job FOR UPDATE")
        action = act_in_background("hold", job.id, version_seen=1)
        assert action.result(timeout=PATIENCE_SECONDS).outcome == Outcome.BUSY


def test_a_locked_audit_table_is_waited_for_in_bounded_time(settings: Any, queue_connection: Connection) -> None:
    """Without its record nothing is done and nothing answered; but nobody hangs either."""
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": 0.2}
    job = JobFactory()
    before = snapshot()
    with queue_connection.transaction():
        queue_connection.execute("LOCK TABLE pgqueue_operatoraction IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            act_now("hold", job.id, 1)
    assert snapshot() == before


@pytest.mark.parametrize("busy", [False, True])
def test_the_lock_timeout_does_not_leak_out_of_the_transaction(
    settings: Any, queue_connection: Connection, busy: bool
) -> None:
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": 0.2}
    job = JobFactory()
    with queue_connection.transaction():
        if busy:
            queue_connection.execute("SELECT FROM pgqueue_job FOR UPDATE")
        act_now("hold", job.id, 1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout'), current_setting('transaction_isolation')")
        assert cursor.fetchone() == ("0", "read committed")


def test_a_verb_holds_its_row_and_no_other(
    queue_connection: Connection, act_in_background: ActInBackground, stopped_before_commit: Stop
) -> None:
    [job, *others] = add_jobs(5)
    action = act_in_background("hold", job.id, version_seen=job.version)
    stopped_before_commit.wait_until_reached()
    assert look(queue_connection, claimant()).due_lanes == {Lane.PLAIN}
    leases = claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=10)
    assert [lease.id for lease in leases] == [other.id for other in others]
    endings = [Ending(EndingKind.COMPLETE, lease.id, lease.fence) for lease in leases]
    assert len(settle(queue_connection, worker_id=WORKER, endings=endings).written) == len(others)
    assert act_now("pause_queue", "default", 0).outcome == Outcome.APPLIED
    stopped_before_commit.release()
    assert action.result().outcome == Outcome.APPLIED


# -- the target is not what it was -------------------------------------------------------------------------


def test_a_vanished_job_is_gone() -> None:
    job = JobFactory()
    Job.objects.all().delete()
    assert act_now("hold", job.id, job.version).outcome == Outcome.GONE
    assert outcomes() == [Outcome.GONE]


@pytest.mark.usefixtures("patient_locks")
def test_a_job_that_vanishes_while_the_verb_waits_is_gone(
    queue_connection: Connection, act_in_background: ActInBackground, wait_until_sessions_wait: Wait
) -> None:
    job = JobFactory()
    with queue_connection.transaction():
        queue_connection.execute("DELETE FROM pgqueue_job")
        action = act_in_background("hold", job.id, version_seen=job.version)
        wait_until_sessions_wait(1)
    assert action.result().outcome == Outcome.GONE


@pytest.mark.parametrize("verb", ["hold", "cancel", "give_up"])
def test_a_job_claimed_since_the_page_was_shown_is_not_touched(queue_connection: Connection, verb: str) -> None:
    job = JobFactory()
    [lease] = claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=1)
    before = snapshot()
    action = act_now(verb, job.id, job.version)
    assert (action.outcome, action.state_found) == (Outcome.CHANGED, State.RUNNING)
    assert action.facts["fence"] == lease.fence
    assert snapshot() == before


@pytest.mark.usefixtures("patient_locks")
def test_a_verb_that_waits_for_an_open_claim_finds_the_job_running(
    queue_connection: Connection, act_in_background: ActInBackground, wait_until_sessions_wait: Wait
) -> None:
    job = JobFactory()
    with queue_connection.transaction():
        assert len(claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=1)) == 1
        action = act_in_background("cancel", job.id, version_seen=job.version)
        wait_until_sessions_wait(1)
    assert (action.result().outcome, action.result().state_found) == (Outcome.CHANGED, State.RUNNING)


def test_a_claim_skips_a_job_that_is_being_held(
    queue_connection: Connection, act_in_background: ActInBackground, stopped_after_lock: Stop
) -> None:
    job = JobFactory()
    action = act_in_background("hold", job.id, version_seen=job.version)
    stopped_after_lock.wait_until_reached()
    assert claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=1) == []
    stopped_after_lock.release()
    assert action.result().outcome == Outcome.APPLIED


# -- pauses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lane", "traits"), [(Lane.PLAIN, {}), (Lane.LANED, {"keyed": True}), (Lane.ALONE, {"alone": True})]
)
def test_a_pause_holds_for_every_claim_begun_after_its_commit(
    queue_connection: Connection,
    act_in_background: ActInBackground,
    stopped_before_commit: Stop,
    lane: Lane,
    traits: dict[str, Any],
) -> None:
    before_commit = JobFactory(**traits)
    paused = act_in_background("pause_queue", "default", version_seen=0)
    stopped_before_commit.wait_until_reached()
    [lease] = claim(queue_connection, claimant(), lane=lane, limit=1)
    assert lease.id == before_commit.id
    stopped_before_commit.release()
    assert paused.result().outcome == Outcome.APPLIED

    JobFactory(**{**traits, "shard_key": "another"} if traits.get("keyed") else traits)
    elsewhere = JobFactory(queue="other", **traits)
    assert [lease.id for lease in claim(queue_connection, claimant(), lane=lane, limit=10)] == [elsewhere.id]
    ending = Ending(EndingKind.COMPLETE, lease.id, lease.fence)
    assert settle(queue_connection, worker_id=WORKER, endings=[ending]).written[lease.id].state == State.SUCCEEDED

    assert act_now("resume_queue", "default", 1).outcome == Outcome.APPLIED
    assert len(claim(queue_connection, claimant(), lane=lane, limit=10)) == 1


def test_resume_and_requeue_wake_listening_workers(queue_connection: Connection) -> None:
    queue_connection.execute("LISTEN pgqueue")
    QueueFactory(name="mail", paused=True)
    job = JobFactory(dead=True, queue="sms")
    act_now("resume_queue", "mail", 1)
    act_now("requeue", job.id, job.version)
    heard = {notify.payload for notify in queue_connection.notifies(timeout=PATIENCE_SECONDS, stop_after=2)}
    assert heard == {"mail", "sms"}


# -- whose transaction -------------------------------------------------------------------------------------


def test_an_action_inside_an_atomic_block_is_refused_and_changes_nothing() -> None:
    job = JobFactory()
    before = snapshot()
    with django_transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        act_now("hold", job.id, job.version)
    assert snapshot() == before
    assert outcomes() == []


def test_an_action_without_autocommit_is_refused_and_changes_nothing() -> None:
    """`atomic` would not commit there, and `applied` would be said of what may be rolled back."""
    job = JobFactory()
    before = snapshot()
    django_transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError, match="autocommit"):
            act_now("hold", job.id, job.version)
        django_transaction.rollback()
    finally:
        django_transaction.set_autocommit(True)
    assert snapshot() == before
    assert outcomes() == []


@pytest.fixture
def repeatable_read() -> Iterator[None]:
    """Every new session of the test's database starts transactions in Repeatable Read."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    connections.close_all()
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")
    connections.close_all()


@pytest.mark.usefixtures("patient_locks", "repeatable_read")
def test_a_database_that_defaults_to_repeatable_read_gets_the_same_outcomes(
    act_in_background: ActInBackground, stopped_before_commit: Stop, wait_until_sessions_wait: Wait
) -> None:
    job = JobFactory()
    first = act_in_background("hold", job.id, version_seen=job.version, idempotency_key="k")
    stopped_before_commit.wait_until_reached()
    changed = act_in_background("cancel", job.id, version_seen=job.version)
    replayed = act_in_background("hold", job.id, version_seen=job.version, idempotency_key="k")
    wait_until_sessions_wait(2)
    stopped_before_commit.release()
    assert first.result().outcome == Outcome.APPLIED
    assert changed.result().outcome == Outcome.CHANGED
    assert replayed.result().outcome == Outcome.REPLAYED


def test_an_action_cut_before_its_commit_leaves_nothing_and_can_be_sent_again(
    monkeypatch: pytest.MonkeyPatch, queue_connection: Connection
) -> None:
    job = JobFactory()
    before = snapshot()
    audit = operating.audit

    def audit_and_die(alias: str, row: operating.AuditRow) -> int:
        id = audit(alias, row)
        pid = connections[alias].connection.info.backend_pid
        queue_connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        return id

    with monkeypatch.context() as patched:
        patched.setattr(operating, "audit", audit_and_die)
        with pytest.raises(OperationalError):
            act_now("hold", job.id, job.version, idempotency_key="k")
    connection.close()
    assert snapshot() == before
    assert outcomes() == []
    assert act_now("hold", job.id, job.version, idempotency_key="k").outcome == Outcome.APPLIED


@pytest.mark.usefixtures("patient_locks")
def test_operators_of_many_queues_never_deadlock(act_in_background: ActInBackground) -> None:
    """Rows of queues are made, locked and paused by everybody at once, in no common order."""
    names = [f"queue{number}" for number in range(5)]
    targets = [name for start in range(5) for name in names[start:] + names[:start]]
    futures = [act_in_background("pause_queue", name, version_seen=0) for name in targets]
    found = Counter(future.result().outcome for future in futures)
    assert found == {Outcome.APPLIED: 5, Outcome.CHANGED: 20}
    assert set(Queue.objects.values_list("name", "version")) == {(name, 1) for name in names}
