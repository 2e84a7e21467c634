"""Everything that can be done to jobs, in random order, on real rows; what must hold is checked after each step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pgqueue.exceptions import LeaseLostError, OutcomeUnknownError
from pgqueue.models import Effect, Job, Limit, OperatorAction, Queue
from pgqueue.operations import Actor, act
from pgqueue.protocol.claiming import Lease, Turn, claim
from pgqueue.protocol.effects import Call, EffectRow, confirm_effect, open_effect, record_effect, withdraw_effect
from pgqueue.protocol.leasing import renew
from pgqueue.protocol.marks import Marks
from pgqueue.protocol.probing import Question, Reply, lease_question, write_reply
from pgqueue.protocol.settling import Ending, EndingKind
from pgqueue.states import FINAL, TRANSITIONS, WAITING, Lane, Outcome, Recovery, Stage, State, worst
from pgqueue.takeover import take_over_expired
from pgqueue.verbs import VERBS
from tests.factories import TASK, JobFactory, from_now
from tests.mutants.mutating import Mutant, Sessions, loaded
from tests.mutants.table import MUTANTS as ALL
from tests.mutants.table import needs_two_sessions
from tests.statements.doing import FAILURE, claimant, end

SHORT = bool(os.environ.get("PGQUEUE_SHORT"))
ADA = Actor(id="1", name="ada")
WORKERS = (-101, -202)
LEGAL = {(move.source, move.target) for move in TRANSITIONS}
GIVEN = {"remote_reference": "r", "evidence": "seen", "to": "bob", "for_seconds": 60, "effect": "sms"}
GIVEN |= {"delay_seconds": 60, "priority": 7, "queue": "default"}
JOB_VERBS = sorted(name for name, verb in VERBS.items() if verb.kind == "job")
TARGETS = {"queue": "elsewhere", "limit": "tenant:acme"}
OTHER_VERBS = sorted(name for name, verb in VERBS.items() if verb.kind in TARGETS)
MOST_EXAMPLES = 400
"""In which a statement that is wrong must be noticed: most are in ten, an ending of another worker's in a hundred."""
WEIGHTS = {
    "enqueue": 2,
    "claim": 5,
    "renew": 2,
    "open": 5,
    "go_on": 5,
    "end": 3,
    "let_time_pass": 2,
    "take_over": 2,
    "lose_and_claim_again": 3,
    "operate": 5,
    "operate_elsewhere": 1,
    "ask": 3,
    "answer": 3,
}


MOST_JOBS = 6
"""Unfinished at once: so few that what is done meets again and again."""


class Jobs(RuleBasedStateMachine):
    """Two workers, an operator, a prober and the clock. Leases are kept for ever, so that most are stale."""

    def __init__(self) -> None:
        super().__init__()
        Job.objects.all().delete()
        Effect.objects.all().delete()
        self.connection = connection.connection
        self.leases: list[tuple[int, Lease]] = []
        self.begun: set[tuple[int, str]] = set()
        self.questions: list[tuple[Question, EffectRow]] = []
        self.before: dict[int, tuple[str, int, int]] = {}
        self.audited = OperatorAction.objects.count()
        self.claims = 0
        for recovery in (Recovery.IDEMPOTENT, Recovery.PROBE, Recovery.MANUAL):
            JobFactory(recovery=recovery, task=TASK, max_attempts=3)

    def lease(self, data: Any) -> tuple[int, Lease]:
        """Return a lease and its worker: one of the last, any, or one whose job somebody runs under a later fence."""
        running = dict(Job.objects.filter(state=State.RUNNING).values_list("id", "fence"))
        superseded = [held for held in self.leases if running.get(held[1].id, held[1].fence) != held[1].fence]
        choices = [self.leases[-2:], self.leases, superseded or self.leases]
        worker, lease = data.draw(st.sampled_from(data.draw(st.sampled_from(choices))))
        return data.draw(st.sampled_from([worker, worker, *WORKERS])), lease

    @contextmanager
    def changing_only(self, *ids: int) -> Iterator[None]:
        """Fail when any column of any other job's row is written."""
        before = {row["id"]: row for row in Job.objects.values()}
        yield
        after = {row["id"]: row for row in Job.objects.values()}
        changed = {id for id, row in before.items() if row != after.get(id)}
        assert changed <= set(ids), f"written: {changed - set(ids)}"

    def is_owned(self, worker: int, lease: Lease, *, unexpired: bool = False) -> bool:
        job = Job.objects.get(pk=lease.id)
        is_alive = not unexpired or (job.lease_until is not None and job.lease_until > timezone.now())
        return is_alive and (job.state, job.fence, job.worker_id) == (State.RUNNING, lease.fence, worker)

    def if_owned(self, worker: int, lease: Lease, *, unexpired: bool = False) -> list[int]:
        return [lease.id] if self.is_owned(worker, lease, unexpired=unexpired) else []

    @rule(data=st.data(), step=st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)]))
    def step(self, data: Any, step: str) -> None:
        """Do one thing; all of them stay likely, which rules of their own would not."""
        getattr(self, step)(data)

    def enqueue(self, data: Any) -> None:
        if Job.objects.exclude(state__in=FINAL).count() < MOST_JOBS:
            JobFactory(recovery=data.draw(st.sampled_from(list(Recovery))), task=TASK, max_attempts=3)

    def claim(self, data: Any) -> None:
        self.claim_for(data.draw(st.sampled_from(WORKERS)))

    def claim_for(self, worker: int) -> None:
        """Claim what is due; each third time, of the plain lane, only the factory's one group, from behind its mark."""
        self.claims += 1
        for lane in (Lane.PLAIN, Lane.ALONE):
            due = Job.objects.filter(state__in=WAITING, lane=lane, run_at__lte=timezone.now())
            with self.changing_only(*due.values_list("id", flat=True)):
                turn = Turn(marks=Marks(clock=lambda: -1.0))  # No whole claim is due.
                if self.claims % 3 == 0:
                    turn.marks.know([("default", 0, TASK)])
                got = claim(self.connection, claimant(worker_id=worker), lane=lane, limit=2, turn=turn)
            self.leases += [(worker, lease) for lease in got]

    def renew(self, data: Any) -> None:
        if not self.leases:
            return
        worker, lease = self.lease(data)
        with self.changing_only(*self.if_owned(worker, lease, unexpired=True)):
            renew(self.connection, worker_id=worker, held={lease.id: lease.fence}, lease_seconds=60)

    def open(self, data: Any) -> None:
        if not self.leases:
            return
        _, lease = self.lease(data)
        name = data.draw(st.sampled_from(["sms", "mail"]))
        worker = lease.worker_id
        has_begun = (lease.fence, name) in self.begun
        was = Effect.objects.filter(job_id=lease.id, name=name).first()
        call = Call(name, f"k:{name}", call_deadline_seconds=60, replay_safe_seconds=60, has_begun=has_begun)
        allowed = self.if_owned(worker, lease, unexpired=True)
        try:
            with self.changing_only(*allowed):
                known = open_effect(self.connection, lease, call)
        except (LeaseLostError, OutcomeUnknownError):
            return
        assert allowed, "a lost or expired lease opened an effect"
        if known is None:
            self.begun.add((lease.fence, name))
            blind = was is not None and was.stage == Stage.OUTCOME_UNKNOWN
            assert not blind or lease.recovery == Recovery.IDEMPOTENT, "an unknown effect was called blindly"
            assert was is None or was.stage in (Stage.NOT_CALLED, Stage.OUTCOME_UNKNOWN), "a known one was called again"

    def go_on(self, data: Any) -> None:
        """What only a run does that has begun the call."""
        if not self.begun:
            return
        step = data.draw(st.sampled_from(["record", "withdraw", "confirm"]))
        fence, name = data.draw(st.sampled_from(sorted(self.begun)))
        worker, lease = next(held for held in self.leases if held[1].fence == fence)
        with self.changing_only(*self.if_owned(worker, lease)), suppress(LeaseLostError, OutcomeUnknownError):
            if step == "record":
                record_effect(self.connection, lease, name, result="1", remote_reference="r")
            elif step == "withdraw":
                withdraw_effect(self.connection, lease, name)
                self.begun.discard((fence, name))
            else:
                confirm_effect(self.connection, lease, name, Stage.CONFIRMED)

    def end(self, data: Any) -> None:
        if not self.leases:
            return
        worker, lease = self.lease(data)
        kind = data.draw(st.sampled_from(list(EndingKind)))
        failure = FAILURE if kind in (EndingKind.RETRY, EndingKind.BURY) else None
        owned = self.if_owned(worker, lease)
        with self.changing_only(*owned):
            settled = end(self.connection, Ending(kind, lease.id, lease.fence, failure=failure), worker_id=worker)
        assert settled.busy == []
        assert not owned or lease.id in settled.written

    def let_time_pass(self, data: Any) -> None:
        """Leases run out, retries and questions become due, deadlines pass."""
        Job.objects.filter(state=State.RUNNING).update(lease_until=from_now(-1))
        Job.objects.filter(state__in=[State.PENDING, State.RETRYING]).update(run_at=from_now(-1))
        Job.objects.filter(probe_at__isnull=False).update(probe_at=from_now(-1))
        Effect.objects.filter(deadline_at__isnull=False).update(deadline_at=from_now(-1))

    def take_over(self, data: Any) -> None:
        expired = Job.objects.filter(state=State.RUNNING, lease_until__lte=timezone.now())
        with self.changing_only(*(ids := list(expired.values_list("id", flat=True)))):
            take_over_expired(self.connection)
        assert not Job.objects.filter(pk__in=ids, state=State.RUNNING).exists()

    def lose_and_claim_again(self, data: Any) -> None:
        """Now the worker of a lost lease holds a newer one of the same job, as one does that was only slow."""
        Job.objects.filter(state=State.RUNNING).update(lease_until=from_now(-1))
        self.take_over(data)
        if self.leases:
            self.claim_for(self.leases[-1][0])

    def operate(self, data: Any) -> None:
        """Do what an operator does, with a version that is or is not the row's; perhaps the same request twice."""
        jobs = list(Job.objects.order_by("id"))
        if not jobs:
            return
        job = data.draw(st.sampled_from(jobs))
        fitting = [verb for verb in JOB_VERBS if job.state in VERBS[verb].states]
        verb = data.draw(
            st.sampled_from(fitting) | st.sampled_from(JOB_VERBS) if fitting else st.sampled_from(JOB_VERBS)
        )
        stale, again = data.draw(st.sampled_from([False, False, True])), data.draw(st.booleans())
        effect = data.draw(st.sampled_from(["sms", "mail"]))
        params = {name: value for name, value in GIVEN.items() if name in VERBS[verb].needs}
        if VERBS[verb].statement == "reconcile" and job.unknown_effects and verb != "give_up_unknown":
            params["effect"] = effect
        request = {"version_seen": job.version - stale, "actor": ADA, "reason": "why", "params": params}
        with self.changing_only(*([] if stale else [job.pk])):
            action = act(verb, job.pk, idempotency_key=f"{self.audited}", **request)
        self.audited += 1
        if stale:
            assert action.outcome != Outcome.APPLIED, "applied to what the operator did not see"
        elif action.outcome == Outcome.APPLIED and verb != "clone":
            assert Job.objects.get(pk=job.pk).version == job.version + 1
        if again and action.outcome == Outcome.APPLIED:
            with self.changing_only():
                replayed = act(verb, job.pk, idempotency_key=f"{self.audited - 1}", **request)
            self.audited += 1
            assert replayed.outcome == Outcome.REPLAYED

    def operate_elsewhere(self, data: Any) -> None:
        verb, stale = data.draw(st.sampled_from(OTHER_VERBS)), data.draw(st.booleans())
        kind = VERBS[verb].kind
        target = TARGETS[kind]
        found = Queue.objects.filter(name=target) if kind == "queue" else Limit.objects.filter(pk=target)
        version = found.values_list("version", flat=True).first() or 0
        with self.changing_only():
            action = act(verb, target, version_seen=version + stale, actor=ADA, reason="why", params={})
        self.audited += 1
        assert not stale or action.outcome != Outcome.APPLIED

    def ask(self, data: Any) -> None:
        """Ask what is due; then again, when nothing is, unless time has passed."""
        for _ in range(2):
            unknown = Job.objects.filter(state=State.UNKNOWN, probe_at__lte=timezone.now())
            with self.changing_only(*unknown.values_list("id", flat=True)):
                leased = lease_question(self.connection, worker_id=-101, tasks=[TASK], timeout_seconds=60)
            if leased is not None:
                self.questions.append(leased)

    def answer(self, data: Any) -> None:
        """Answer any question ever asked: a verdict given meanwhile has made most of them late."""
        if not self.questions:
            return
        stage = data.draw(st.sampled_from([Stage.RESULT_KNOWN, Stage.NOT_CALLED, None]))
        question, effect = data.draw(st.sampled_from(self.questions))
        may_arrive = Effect.objects.filter(job_id=question.id, name=effect.name, deadline_at__gt=timezone.now())
        if stage == Stage.NOT_CALLED and may_arrive.exists():
            stage = None  # No probe's no is passed on before the deadline of the call.
        job = Job.objects.get(pk=question.id)
        is_open = (job.state, job.fence) == (State.UNKNOWN, question.fence)
        with self.changing_only(*([job.pk] if is_open else [])):
            write_reply(self.connection, question, effect.name, Reply("said", "so", stage, delay_seconds=1.0))

    @invariant()
    def every_job_moved_legally(self) -> None:
        """Fence and version never go back; a move is one of the table; an owner is there exactly while it runs."""
        for job in Job.objects.all():
            state, version, fence = self.before.get(job.pk, (job.state, job.version, job.fence))
            assert state == job.state or (state, job.state) in LEGAL, f"{state} -> {job.state}"
            assert job.version > version or state == job.state
            assert (job.version >= version, job.fence >= fence) == (True, True)
            assert (job.worker_id is not None) == (job.lease_until is not None) == (job.state == State.RUNNING)
            self.before[job.pk] = (job.state, job.version, job.fence)

    @invariant()
    def every_job_knows_its_effects(self) -> None:
        found: dict[int, list[str]] = {}
        for id, stage in Effect.objects.values_list("job_id", "stage"):
            found.setdefault(id, []).append(stage)
        for job in Job.objects.all():
            stages = found.get(job.pk, [])
            assert job.stage == worst(stages)
            assert job.unknown_effects == (0 if job.state == State.DEAD else stages.count(Stage.OUTCOME_UNKNOWN))
            if job.unknown_effects and job.state not in (State.RUNNING, State.UNKNOWN):
                assert job.recovery == Recovery.IDEMPOTENT

    @invariant()
    def every_action_is_on_record(self) -> None:
        assert OperatorAction.objects.count() == self.audited


def run(*, examples: int, **given: Any) -> None:
    """Run the machine on the statements that are loaded."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        **given,
    )
    run_state_machine_as_test(Jobs, settings=chosen)


@pytest.mark.django_db
def test_whatever_is_done_in_whatever_order(session) -> None:
    run(examples=10 if SHORT else 25)


def of_the_table(statement: str, guard: str) -> Mutant:
    found = [mutant for mutant in ALL if (mutant.statement, mutant.guard) == (statement, guard)]
    return next(mutant for mutant in found if not needs_two_sessions(mutant))


def nothing(sessions: Sessions) -> None:
    """The machine is the scenario."""


EXPIRED = (("AND job.lease_until <= statement_timestamp()", ""),)
BROKEN = [
    of_the_table("complete", "fence"),
    of_the_table("lock_owned", "where asked for, the lease has not expired"),
    of_the_table("claim", "the row is still waiting"),
    Mutant("lock_expired", "and still expired", EXPIRED, nothing, {"take_over": EXPIRED}),
    Mutant("find_replay", "", (("action.outcome = 'applied'", "false"),), nothing),
    of_the_table("renew", "fence"),
    of_the_table("lock_owned", "fence"),
    Mutant("record_effect", "stage", (("SET stage = %(stage)s::text,", "SET"),), nothing),
    Mutant("open_effect", "unknown_effects", (("unknown_effects = %(unknown_effects)s::smallint,", ""),), nothing),
    of_the_table("claim", "of this lane"),
    *(of_the_table("claim_behind", guard) for guard in ("the row is still waiting", "of this lane")),
    of_the_table("renew", "worker_id"),
    of_the_table("lease_probe", "still unknown"),
    *(of_the_table(kind, "fence") for kind in ("retry", "bury")),
    *(of_the_table(kind, "worker_id") for kind in ("retry", "bury", "release")),
    *(of_the_table(kind, "no effect with an unknown outcome") for kind in EndingKind),
]
"""Statements that are wrong, each so that the machine is likely to come upon it."""


@pytest.mark.faults
@pytest.mark.django_db
@pytest.mark.parametrize(
    "mutant", BROKEN[:5] if SHORT else BROKEN, ids=lambda mutant: f"{mutant.statement}-{mutant.guard}"
)
def test_it_notices_a_statement_that_is_wrong(mutant: Mutant, session) -> None:
    with loaded(mutant.texts()), pytest.raises((AssertionError, psycopg.IntegrityError)):
        run(examples=MOST_EXAMPLES, phases=[Phase.generate])
