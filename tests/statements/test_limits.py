"""Limits, rates, pauses, turns and keys: what a claim takes, and what it leaves, by what stands in the database."""

import pytest

from pgqueue.models import Job, Limit
from pgqueue.protocol.claiming import Turn
from pgqueue.protocol.looking import look
from pgqueue.protocol.upkeep import declare_limits
from pgqueue.sql import load
from pgqueue.states import Lane, State
from pgqueue.takeover import take_over_expired
from tests.factories import TASK, JobFactory, LimitFactory, from_now
from tests.races.rows import add_jobs
from tests.statements.doing import claim_ids, claimant, fresh

pytestmark = pytest.mark.django_db

ECHO = "tests.testapp.tasks.echo"
BOUND = {
    "tenant:acme": {"tenanted": True},
    "resource:printer": {"using": True},
    "queue:default": {},
    f"task:{TASK}": {},
}
EACH = pytest.mark.parametrize(("limit", "shape"), BOUND.items(), ids=BOUND)


def lane_of(shape):
    return Lane.LANED if shape else Lane.BOUND


def end_all():
    Job.objects.filter(state=State.RUNNING).update(
        state=State.SUCCEEDED, worker_id=None, lease_until=None, finished_at=from_now(0)
    )


@EACH
def test_no_more_run_than_the_limit(session, limit, shape):
    LimitFactory(id=limit, max_running=3)
    ids = [JobFactory(**shape).id for _ in range(5)]
    assert claim_ids(session, lane=lane_of(shape)) == ids[:3]
    assert claim_ids(session, lane=lane_of(shape)) == []
    end_all()
    assert claim_ids(session, lane=lane_of(shape)) == ids[3:]


@EACH
def test_a_limit_of_none_at_all_stops_them(session, limit, shape):
    LimitFactory(id=limit, max_running=0)
    JobFactory(**shape)
    assert claim_ids(session, lane=lane_of(shape)) == claim_ids(session) == []


@EACH
def test_a_bucket_holds_so_many_starts_and_no_more(session, limit, shape):
    LimitFactory(id=limit, fresh=True)
    ids = [JobFactory(**shape).id for _ in range(5)]
    assert claim_ids(session, lane=lane_of(shape), limit=2) == ids[:2]
    assert claim_ids(session, lane=lane_of(shape)) == ids[2:3]
    end_all()
    assert claim_ids(session, lane=lane_of(shape)) == []
    assert 0 <= Limit.objects.get().tokens < 1


@EACH
def test_a_bucket_fills_by_the_databases_clock_and_never_over(session, limit, shape):
    bucket = LimitFactory(id=limit, rate_per_second=0.001, burst=2, tokens=0.0, refilled_at=from_now(-1500))
    ids = [JobFactory(**shape).id for _ in range(4)]
    assert claim_ids(session, lane=lane_of(shape)) == ids[:1]
    assert fresh(bucket).tokens == pytest.approx(0.5, abs=0.2)
    Limit.objects.update(refilled_at=from_now(-36000))
    assert claim_ids(session, lane=lane_of(shape)) == ids[1:3]


@EACH
def test_a_rate_goes_on_after_the_servers_clock_went_back(session, limit, shape):
    """One start comes of it and no burst. The claim writes the time of today, and the rate is what it was."""
    bucket = LimitFactory(id=limit, rate_per_second=0.01, burst=5, tokens=0.0, refilled_at=from_now(3600))
    ids = [JobFactory(**shape).id for _ in range(3)]
    assert claim_ids(session, lane=lane_of(shape)) == ids[:1]
    assert fresh(bucket).tokens == pytest.approx(0.0, abs=0.1)
    assert Limit.objects.filter(refilled_at__lt=from_now(60)).exists()
    end_all()
    assert claim_ids(session, lane=lane_of(shape)) == []
    Limit.objects.update(refilled_at=from_now(-110))
    assert claim_ids(session, lane=lane_of(shape)) == ids[1:2]


def test_what_is_left_of_a_bucket_outlasts_a_clock_that_went_back(session):
    LimitFactory(id="tenant:acme", rate_per_second=0.01, burst=5, tokens=3.0, refilled_at=from_now(3600))
    ids = [JobFactory(tenanted=True).id for _ in range(5)]
    assert claim_ids(session, lane=Lane.LANED) == ids[:3]


def test_a_clock_that_went_back_by_less_than_a_token_takes_gives_none(session):
    LimitFactory(id="tenant:acme", rate_per_second=0.01, burst=5, tokens=0.0, refilled_at=from_now(60))
    JobFactory(tenanted=True)
    assert claim_ids(session, lane=Lane.LANED) == []


def test_a_bucket_with_less_than_nothing_begins_with_nothing(session):
    """No statement writes that; a person may have."""
    bucket = LimitFactory(id="tenant:acme", rate_per_second=0.01, burst=5, tokens=-1000.0, refilled_at=from_now(-110))
    ids = [JobFactory(tenanted=True).id for _ in range(3)]
    assert claim_ids(session, lane=Lane.LANED) == ids[:1]
    assert 0 <= fresh(bucket).tokens < 1


@pytest.mark.parametrize("ahead", [3600, -110])
def test_a_look_and_the_standings_tell_of_the_token_that_is_there(session, ahead):
    LimitFactory(id="tenant:acme", rate_per_second=0.01, burst=5, tokens=-7.0, refilled_at=from_now(ahead))
    JobFactory(tenanted=True)
    assert look(session, claimant()).next_due_seconds is None
    standings = {row[0] for row in session.execute(load("count_standing"), {"cap": 10, "ids": None})}
    assert "rate_spent" not in standings
    Limit.objects.update(tokens=0.0, refilled_at=from_now(0))
    assert look(session, claimant()).next_due_seconds == pytest.approx(100, abs=10)


def test_a_new_rate_begins_with_no_less_than_nothing(session):
    bucket = LimitFactory(id="tenant:acme", rate_per_second=0.01, burst=5, tokens=-1000.0, refilled_at=from_now(3600))
    params = {"id": "tenant:acme", "version_seen": bucket.version, "rate_per_second": 0.02, "burst": 3}
    session.execute(load("set_rate"), params)
    assert 0 <= fresh(bucket).tokens <= 1
    assert Limit.objects.filter(refilled_at__lt=from_now(60)).exists()


@EACH
def test_a_pause_stops_the_claims_and_ends_by_itself(session, limit, shape):
    LimitFactory(id=limit, paused=True, paused_until=from_now(60))
    job = JobFactory(**shape)
    assert claim_ids(session, lane=lane_of(shape)) == claim_ids(session) == []
    Limit.objects.update(paused_until=from_now(-1))
    assert claim_ids(session, lane=lane_of(shape)) == [job.id]


@pytest.mark.case("D11")
def test_one_tenants_limit_is_nobody_elses(session):
    LimitFactory(id="tenant:a", max_running=1)
    for _ in range(3):
        JobFactory(tenanted=True, tenant="a")
    others = [JobFactory(tenanted=True, tenant="b").id, JobFactory(using=True).id]
    assert len(claim_ids(session, lane=Lane.LANED)) == 3
    assert set(Job.objects.filter(state=State.RUNNING, tenant=None).values_list("id", flat=True)) == {others[1]}
    assert fresh(Job.objects.get(id=others[0])).state == State.RUNNING


def test_several_limits_hold_together(session):
    LimitFactory(id="queue:default", max_running=4)
    LimitFactory(id="tenant:a", max_running=1)
    LimitFactory(id="resource:printer", max_running=2)
    for _ in range(3):
        JobFactory(tenanted=True, tenant="a")
        JobFactory(using=True)
        JobFactory(tenanted=True, tenant="b", resource="printer")
        JobFactory(tenanted=True, tenant="c")
    for _ in range(6):
        claim_ids(session, lane=Lane.LANED, limit=2)
    running = Job.objects.filter(state=State.RUNNING)
    assert running.count() == 4
    assert running.filter(tenant="a").count() <= 1
    assert running.filter(resource="printer").count() <= 2


def test_a_plain_claim_leaves_what_is_bound_and_takes_the_rest(session):
    LimitFactory(id="queue:bound", max_running=5)
    bound, free = JobFactory(queue="bound"), JobFactory()
    assert claim_ids(session) == [free.id]
    assert claim_ids(session, lane=Lane.BOUND) == [bound.id]


def test_a_job_that_lost_its_lease_counts_and_is_bound_too(session):
    LimitFactory(id="tenant:acme", max_running=1)
    running = JobFactory(tenanted=True, expired=True)
    lost = JobFactory(tenanted=True, alone=True)
    assert claim_ids(session, lane=Lane.ALONE, limit=1) == []
    take_over_expired(session)
    assert claim_ids(session, lane=Lane.ALONE, limit=1) in ([lost.id], [running.id])
    assert claim_ids(session, lane=Lane.ALONE, limit=1) == []


@pytest.mark.case("D02")
@pytest.mark.case("D03")
@pytest.mark.parametrize("limit", [1, 2])
def test_a_dead_workers_slots_are_free_after_the_takeover_and_no_earlier(session, limit):
    """Until then its code may still be running. So expired leases do use a slot, and nobody waits for ever."""
    LimitFactory(id="tenant:acme", max_running=limit)
    for _ in range(limit):
        JobFactory(tenanted=True, expired=True)
    waiting = [JobFactory(tenanted=True).id for _ in range(limit)]
    assert claim_ids(session, lane=Lane.LANED) == []
    assert len(take_over_expired(session)) == limit
    assert claim_ids(session, lane=Lane.LANED) == waiting


@pytest.mark.case("D09")
def test_a_limit_that_no_code_here_knows_is_a_row_like_any_other(session):
    LimitFactory(id="resource:of-tomorrow", max_running=1)
    first, _second = JobFactory(using=True, resource="of-tomorrow"), JobFactory(using=True, resource="of-tomorrow")
    free = JobFactory(using=True, resource="of-yesterday")
    assert sorted(claim_ids(session, lane=Lane.LANED)) == [first.id, free.id]


@pytest.mark.case("D12")
def test_what_an_operator_requeued_is_bound_as_before(session):
    LimitFactory(id="tenant:acme", max_running=1)
    jobs = [JobFactory(tenanted=True, dead=True) for _ in range(2)]
    Job.objects.update(state=State.PENDING, finished_at=None, attempts=0)
    assert claim_ids(session, lane=Lane.LANED) == [jobs[0].id]
    assert claim_ids(session, lane=Lane.LANED) == []


# the order among tenants and priorities


def tenants_of(session, *, claims, limit, turn=None):
    turn, served = turn or Turn(), []
    for _ in range(claims):
        ids = claim_ids(session, lane=Lane.LANED, limit=limit, turn=turn)
        tenants = dict(Job.objects.filter(id__in=ids).values_list("id", "tenant"))
        served += [tenants[id] for id in ids]
        end_all()
    return served


@pytest.mark.parametrize(("limit", "large"), [(1, 500), (10, 500), (7, 100_000)])
def test_ten_jobs_are_among_the_first_forty_behind_a_hundred_thousand(session, limit, large):
    """The ten come while the large tenant's work is under way."""
    session.execute(
        "INSERT INTO pgqueue_job (fence, version, created_at, run_at, priority, lane, attempts, max_attempts,"
        " lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant)"
        " SELECT 0, 1, now(), now() - interval '1 s', 0, 1, 0, 8, 0, 0, 'pending', 'default', %s, 'undeclared',"
        " 'not_called', 'large' FROM generate_series(1, %s)",
        [TASK, large],
    )
    turn = Turn()
    tenants_of(session, claims=3, limit=limit, turn=turn)
    add_jobs(10, tenanted=True, tenant="small")
    served = tenants_of(session, claims=40 // limit + 1, limit=limit, turn=turn)
    assert served[:40].count("small") == 10


@pytest.mark.parametrize("limit", [1, 4, 6])
def test_tenants_take_turns_by_their_weights(session, limit):
    LimitFactory(id="tenant:b", weight=3)
    for tenant in ("a", "b", "c"):
        add_jobs(60, tenanted=True, tenant=tenant)
    served = tenants_of(session, claims=60 // limit, limit=limit)
    assert [served.count(tenant) for tenant in "abc"] == pytest.approx([12, 36, 12], abs=3)


def test_more_tenants_than_a_walk_sees_are_all_served_and_none_twice_before(session):
    for number in range(120):
        add_jobs(2, tenanted=True, tenant=f"tenant{number:03}")
    served = tenants_of(session, claims=24, limit=5)
    assert len(set(served)) == 120


def test_a_tenant_behind_more_blocked_ones_than_a_walk_sees_is_found(session):
    for number in range(150):
        JobFactory(tenanted=True, tenant=f"paused{number:03}")
        LimitFactory(id=f"tenant:paused{number:03}", paused=True)
    free = JobFactory(tenanted=True, tenant="zoe")
    turn, got = Turn(), []
    for _ in range(4):
        got += claim_ids(session, lane=Lane.LANED, limit=5, turn=turn)
        assert got or turn.more_in_seconds is not None
    assert got == [free.id]


def test_a_key_behind_more_busy_ones_than_a_walk_sees_is_found(session):
    for number in range(150):
        JobFactory(keyed=True, shard_key=f"busy{number:03}", running=True)
        JobFactory(keyed=True, shard_key=f"busy{number:03}")
    free = JobFactory(keyed=True, shard_key="free")
    turn, got = Turn(), []
    for _ in range(4):
        got += claim_ids(session, lane=Lane.LANED, limit=5, turn=turn)
        assert got or turn.more_in_seconds is not None
    assert got == [free.id]


def test_a_task_behind_more_unknown_ones_than_a_walk_sees_is_found(session):
    """Jobs without a key: where the walk goes on is told by the task and the resource too."""
    for number in range(60):
        JobFactory(tenanted=True, task=f"gone{number:03}")
    free = JobFactory(tenanted=True)
    turn, got = Turn(), []
    for _ in range(2):
        got += claim_ids(session, lane=Lane.LANED, limit=1, turn=turn)
        assert got or turn.more_in_seconds is not None
    assert got == [free.id]


def test_a_claim_is_filled_by_the_one_tenant_that_has_as_many_jobs(session):
    """Of each of six it reads at first about a sixth of what it wants."""
    for number in range(5):
        JobFactory(tenanted=True, tenant=f"small{number}")
    add_jobs(50, tenanted=True, tenant="large")
    assert len(claim_ids(session, lane=Lane.LANED, limit=20)) == 20


@pytest.mark.case("L12")
@pytest.mark.parametrize(("lane", "traits"), [(Lane.PLAIN, {}), (Lane.LANED, {"tenanted": True})])
def test_low_priority_gets_an_eighth_of_the_claims(session, lane, traits):
    add_jobs(100, priority=9, **traits)
    low = {job.id for job in add_jobs(20, priority=-9, **traits)}
    turn, served = Turn(), []
    for _ in range(80):
        served += claim_ids(session, lane=lane, limit=1, turn=turn)
        end_all()
    assert len(low & set(served)) == 10


def test_claims_that_found_nothing_are_no_turns_of_low_priority(session):
    """Or every eighth might be one of those, for ever."""
    turn = Turn()
    for _ in range(20):
        claim_ids(session, turn=turn)
    assert turn.claims == 0


# shard keys


@pytest.mark.parametrize("blocker", [{"retrying": True, "future": True}, {"paused": True}, {"future": True}])
def test_an_unfinished_head_blocks_where_the_order_is_strict_and_is_passed_elsewhere(session, blocker):
    JobFactory(strict=True, **blocker)
    JobFactory(keyed=True)
    JobFactory(keyed=True, shard_key="lenient", **blocker)
    passed = JobFactory(keyed=True, shard_key="lenient")
    assert claim_ids(session, lane=Lane.LANED) == [passed.id]


def test_an_unknown_outcome_blocks_where_the_order_is_strict(session):
    JobFactory(unknown=True, strict=True, lane=Lane.ALONE)
    JobFactory(keyed=True)
    JobFactory(unknown=True, keyed=True, lane=Lane.ALONE, shard_key="lenient")
    passed = JobFactory(keyed=True, shard_key="lenient")
    assert claim_ids(session, lane=Lane.LANED) == [passed.id]


def test_a_strict_key_goes_by_id_once_its_head_is_due_again(session):
    """Its head failed, and is due later than those that wait for it: by run_at it would be the last."""
    JobFactory(keyed=True, strict=True, run_at=from_now(-50), dead=True)
    head = JobFactory(strict=True, retrying=True, run_at=from_now(-1))
    second = JobFactory(strict=True, run_at=from_now(-40))
    assert claim_ids(session, lane=Lane.LANED) == [head.id]
    end_all()
    assert claim_ids(session, lane=Lane.LANED) == [second.id]


def test_a_strict_head_of_a_task_unknown_here_is_left_with_its_key(session):
    JobFactory(strict=True, task=ECHO)
    JobFactory(strict=True)
    assert claim_ids(session, lane=Lane.LANED) == []


# limits of the settings


def test_declared_limits_are_written_and_forgotten_and_leave_an_operators_alone(session):
    changed = LimitFactory(id="tenant:acme", max_running=7)
    declare_limits(session, {"tenant:acme": {"max_running": 1}, "queue:mail": {"rate_per_second": 2.0}})
    mail = Limit.objects.get(id="queue:mail")
    assert (mail.burst, mail.tokens, mail.weight, mail.version) == (1, 1.0, 1, 0)
    assert fresh(changed).max_running == 7
    declare_limits(session, {})
    assert list(Limit.objects.values_list("id", flat=True)) == ["tenant:acme"]
