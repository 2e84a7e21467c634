"""Everything that can be done to jobs, in random order, on real rows; what must hold is checked after each step."""

from __future__ import annotations

import os
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pgqueue.exceptions import LeaseLostError, OutcomeUnknownError
from pgqueue.models import Effect, Job, OperatorAction
from pgqueue.operations import Actor, act
from pgqueue.protocol.claiming import Lease, claim
from pgqueue.protocol.effects import Call, confirm_effect, open_effect, record_effect, withdraw_effect
from pgqueue.protocol.leasing import renew
from pgqueue.protocol.probing import Reply, lease_question, write_reply
from pgqueue.protocol.settling import Ending, EndingKind
from pgqueue.states import TRANSITIONS, Lane, Recovery, Stage, State, worst
from pgqueue.takeover import take_over_expired
from pgqueue.verbs import VERBS
from tests.factories import TASK, JobFactory, from_now
from tests.statements.doing import FAILURE, claimant, end

SHORT = bool(os.environ.get("PGQUEUE_SHORT"))
ADA = Actor(id="1", name="ada")
WORKERS = (-101, -202)
LEGAL = {(move.source, move.target) for move in TRANSITIONS}
GIVEN = {"remote_reference": "r", "evidence": "seen", "to": "bob", "for_seconds": 60, "effect": "sms"}
GIVEN |= {"delay_seconds": 60, "priority": 7, "queue": "default"}
JOB_VERBS = sorted(name for name, verb in VERBS.items() if verb.kind == "job")


class Jobs(RuleBasedStateMachine):
    """Two workers, an operator, a prober and the clock. Leases are kept for ever, so that most are stale."""

    def __init__(self) -> None:
        super().__init__()
        Job.objects.all().delete()
        Effect.objects.all().delete()
        self.connection = connection.connection
        self.leases: list[tuple[int, Lease]] = []
        self.begun: set[tuple[int, str]] = set()
        self.before: dict[int, tuple[str, int, int]] = {}
        self.audited = OperatorAction.objects.count()

    def lease(self, data: Any) -> tuple[int, Lease]:
        return data.draw(st.sampled_from(self.leases))

    @rule(recovery=st.sampled_from(list(Recovery)))
    def enqueue(self, recovery: str) -> None:
        JobFactory(recovery=recovery, task=TASK, max_attempts=3)

    @rule(worker=st.sampled_from(WORKERS), lane=st.sampled_from([Lane.PLAIN, Lane.ALONE]))
    def claim(self, worker: int, lane: Lane) -> None:
        got = claim(self.connection, claimant(worker_id=worker), lane=lane, limit=2)
        self.leases += [(worker, lease) for lease in got]

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: Any) -> None:
        worker, lease = self.lease(data)
        renew(self.connection, worker_id=worker, held={lease.id: lease.fence}, lease_seconds=60)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), name=st.sampled_from(["sms", "mail"]))
    def open(self, data: Any, name: str) -> None:
        _, lease = self.lease(data)
        has_begun = (lease.fence, name) in self.begun
        was = Effect.objects.filter(job_id=lease.id, name=name).first()
        call = Call(name, f"k:{name}", call_deadline_seconds=60, replay_safe_seconds=60, has_begun=has_begun)
        try:
            known = open_effect(self.connection, lease, call)
        except (LeaseLostError, OutcomeUnknownError):
            return
        if known is None:
            self.begun.add((lease.fence, name))
            blind = was is not None and was.stage == Stage.OUTCOME_UNKNOWN
            assert not blind or lease.recovery == Recovery.IDEMPOTENT, "an unknown effect was called blindly"
            assert was is None or was.stage in (Stage.NOT_CALLED, Stage.OUTCOME_UNKNOWN), "a known one was called again"

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), step=st.sampled_from(["record", "withdraw", "confirm"]))
    def go_on(self, data: Any, step: str) -> None:
        """What only a run does that has begun the call."""
        fence, name = data.draw(st.sampled_from(sorted(self.begun)))
        lease = next(lease for _, lease in self.leases if lease.fence == fence)
        try:
            if step == "record":
                record_effect(self.connection, lease, name, result="1", remote_reference="r")
            elif step == "withdraw":
                withdraw_effect(self.connection, lease, name)
                self.begun.discard((fence, name))
            else:
                confirm_effect(self.connection, lease, name, Stage.CONFIRMED)
        except (LeaseLostError, OutcomeUnknownError):
            pass

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), kind=st.sampled_from(list(EndingKind)))
    def end(self, data: Any, kind: EndingKind) -> None:
        worker, lease = self.lease(data)
        failure = FAILURE if kind in (EndingKind.RETRY, EndingKind.BURY) else None
        job = Job.objects.get(pk=lease.id)
        owned = (job.state, job.fence, job.worker_id) == (State.RUNNING, lease.fence, worker)
        settled = end(self.connection, Ending(kind, lease.id, lease.fence, failure=failure), worker_id=worker)
        assert settled.busy == []
        assert not owned or lease.id in settled.written

    @rule()
    def let_time_pass(self) -> None:
        """Leases run out, retries and questions become due, deadlines pass."""
        Job.objects.filter(state=State.RUNNING).update(lease_until=from_now(-1))
        Job.objects.filter(state__in=[State.PENDING, State.RETRYING]).update(run_at=from_now(-1))
        Job.objects.filter(probe_at__isnull=False).update(probe_at=from_now(-1))
        Effect.objects.filter(deadline_at__isnull=False).update(deadline_at=from_now(-1))

    @rule()
    def take_over(self) -> None:
        take_over_expired(self.connection)

    @rule(data=st.data(), verb=st.sampled_from(JOB_VERBS), stale=st.booleans())
    def operate(self, data: Any, verb: str, stale: bool) -> None:
        jobs = list(Job.objects.order_by("id"))
        if not jobs:
            return
        job = data.draw(st.sampled_from(jobs))
        effect = data.draw(st.sampled_from(["sms", "mail"]))
        params = {name: value for name, value in GIVEN.items() if name in VERBS[verb].needs}
        if VERBS[verb].statement == "reconcile" and job.unknown_effects and verb != "give_up_unknown":
            params["effect"] = effect
        act(verb, job.pk, version_seen=job.version - stale, actor=ADA, reason="why", params=params)
        self.audited += 1

    @rule(stage=st.sampled_from([Stage.RESULT_KNOWN, Stage.NOT_CALLED, None]))
    def probe(self, stage: Stage | None) -> None:
        leased = lease_question(self.connection, worker_id=-101, tasks=[TASK], timeout_seconds=60)
        if leased is not None:
            question, effect = leased
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
        for job in Job.objects.all():
            stages = list(Effect.objects.filter(job_id=job.pk).values_list("stage", flat=True))
            assert job.stage == worst(stages)
            assert job.unknown_effects == (0 if job.state == State.DEAD else stages.count(Stage.OUTCOME_UNKNOWN))
            if job.unknown_effects and job.state not in (State.RUNNING, State.UNKNOWN):
                assert job.recovery == Recovery.IDEMPOTENT

    @invariant()
    def every_action_is_on_record(self) -> None:
        assert OperatorAction.objects.count() == self.audited


@pytest.mark.django_db
def test_whatever_is_done_in_whatever_order(session) -> None:
    run_state_machine_as_test(
        Jobs,
        settings=settings(
            max_examples=10 if SHORT else 25,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
