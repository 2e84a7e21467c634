"""Claims that go on behind marks: what was claimed before is passed over, and what came to lie behind is not lost."""

import random

import pytest

from pgqueue.protocol.claiming import Turn, claim
from pgqueue.protocol.marks import FIRST, MOST_GROUPS, REST_AT_MOST_SECONDS, REST_RATIO, Marks, as_params
from pgqueue.sql import load
from pgqueue.states import Lane
from tests.factories import TASK, JobFactory, LimitFactory, QueueFactory, from_now
from tests.statements.doing import claim_behind, claim_ids, claimant, mark_of

OTHER_TASK = "tests.testapp.tasks.multiply"
BOTH = (TASK, OTHER_TASK)

quick = pytest.mark.django_db


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def claim_marked(session, *jobs, limit=10, **changes):
    """Return the ids that a claim gets with marks behind these jobs. With one mark both statements get the same."""
    params = {"limit": limit, "from_lowest": False, **as_params(dict(map(mark_of, jobs)))}
    changes = {"tasks": BOTH, **changes}
    with session.transaction(force_rollback=len(jobs) == 1):
        rows = session.execute(load("claim"), {**claimant(**changes).params(), **params}).fetchall()
    ids = [row[0] for row in rows]
    if len(jobs) == 1:
        assert claim_behind(session, mark_of(jobs[0]), limit=limit, **changes) == ids
    return ids


@quick
def test_a_claim_goes_on_behind_the_mark_of_a_group(session):
    before, at, after = (JobFactory(run_at=from_now(-seconds)) for seconds in (30, 20, 10))
    assert claim_marked(session, at) == [after.id]
    assert claim_marked(session) == [before.id, at.id]


@quick
def test_of_jobs_due_at_one_instant_the_mark_tells_by_their_ids(session):
    instant = from_now(-10)
    jobs = [JobFactory(run_at=instant) for _ in range(3)]
    assert claim_marked(session, jobs[1]) == [jobs[2].id]


@quick
@pytest.mark.parametrize("queues", [None, ("a", "b"), ("b",)])
def test_with_marks_only_their_groups_are_claimed_from(session, queues):
    a, b = (JobFactory(queue=queue, run_at=from_now(-60)) for queue in "ab")
    other = JobFactory(queue="a", priority=5)
    behind = [JobFactory(queue=queue, run_at=from_now(-50)) for queue in "ab"]
    assert claim_marked(session, a, b, queues=queues) == [
        job.id for job in behind if queues is None or job.queue in queues
    ]
    assert other.id in claim_marked(session)


@quick
@pytest.mark.parametrize("shape", ["paused", "limited", "future", "foreign"])
def test_a_marked_group_is_guarded_like_any(session, shape):
    marked = JobFactory(run_at=from_now(-60))
    JobFactory(run_at=from_now(60) if shape == "future" else from_now(-50))
    if shape == "paused":
        QueueFactory(name=marked.queue, paused_at=from_now(-5))
    if shape == "limited":
        LimitFactory(id=f"queue:{marked.queue}", max_running=5)
    changes = {"excluded": (marked.queue,)} if shape == "foreign" else {}
    assert claim_marked(session, marked, **changes) == []


@quick
@pytest.mark.parametrize("seed", range(5))
def test_any_mix_of_groups_is_claimed_in_order_behind_its_marks(session, seed):
    chance = random.Random(seed)
    jobs = [
        JobFactory(
            queue=chance.choice("ab"),
            priority=chance.choice([0, 3]),
            task=chance.choice(BOTH),
            run_at=from_now(-chance.randrange(1, 40)),
        )
        for _ in range(60)
    ]
    marked = {mark_of(job)[0]: (0.0, 0) for job in jobs} | dict(mark_of(job) for job in chance.sample(jobs, 4))
    left = [job for job in jobs if mark_of(job)[1] > marked[mark_of(job)[0]]]
    left.sort(key=lambda job: (-job.priority, job.run_at, job.id))
    params = {**claimant(tasks=BOTH).params(), "from_lowest": False, **as_params(marked)}
    for limit in (7, 20, 60):
        rows = session.execute(load("claim"), {**params, "limit": limit}).fetchall()
        assert [row[0] for row in rows] == [job.id for job in left[:limit]]
        left = left[limit:]


@quick
def test_what_comes_to_lie_behind_a_mark_is_found_by_the_next_whole_claim(session):
    clock = Clock()
    turn = Turn(marks=Marks(clock=clock))
    first = JobFactory()
    turn.marks.choose(wanted=1)
    clock.now += 1.0
    turn.marks.answered(is_short=False)
    turn.marks.know([])
    turn.marks.note(claim(session, claimant(), lane=Lane.PLAIN, limit=1))
    late = JobFactory(run_at=from_now(-3600))
    assert (claim_ids(session, turn=turn), turn.more_in_seconds) == ([], 0.05)
    clock.now += REST_AT_MOST_SECONDS
    assert (claim_ids(session, turn=turn), turn.more_in_seconds) == ([], 0.0)
    assert (claim_ids(session, turn=turn), turn.more_in_seconds) == ([late.id], None)
    assert first.id != late.id


def lease(queue="q", priority=0, task=TASK, run_epoch=1.0, id=1):
    return type("Lease", (), {"queue": queue, "priority": priority, "task": task, "run_epoch": run_epoch, "id": id})()


@pytest.mark.parametrize(("took", "pause"), [(0.01, 0.01 * REST_RATIO), (3.0, REST_AT_MOST_SECONDS)])
def test_a_whole_claim_is_due_again_after_a_multiple_of_what_it_took(took, pause):
    clock = Clock()
    marks = Marks(clock=clock)
    marks.know([("q", 0, TASK)])
    marks.note([lease()])
    assert marks.choose(wanted=1) == {}
    clock.now += took
    marks.answered(is_short=False)
    clock.now += pause * 0.99
    assert marks.choose(wanted=1) == {("q", 0, TASK): (1.0, 1)}
    marks.answered(is_short=False)
    clock.now += pause * 0.02
    assert marks.choose(wanted=1) == {}


GROUP = ("q", 0, TASK)


def chosen_when_due(*, groups=(GROUP,), claimed_from=(GROUP,), was_short=True, wanted=10):
    """Return marks that have chosen for a claim when a whole one was due."""
    clock = Clock()
    marks = Marks(clock=clock)
    marks.know(groups)
    marks.note([lease(queue) for queue, _, _ in claimed_from])
    marks.choose(wanted=wanted)
    marks.answered(is_short=was_short)
    clock.now += REST_AT_MOST_SECONDS
    marks.choose(wanted=wanted)
    return marks


def test_on_an_idle_queue_a_claim_behind_the_only_mark_goes_before_each_whole_one():
    marks = chosen_when_due()
    for _ in range(3):
        assert (marks.are_used, marks.goes_first) == (True, True)
        marks.answered(is_short=True)
        assert marks.choose(wanted=10) == {}
        assert (marks.are_used, marks.goes_first) == (False, False)
        marks.answered(is_short=True)
        assert marks.choose(wanted=10) == {GROUP: (1.0, 1)}


@pytest.mark.parametrize(
    "case",
    [
        {"was_short": False},
        {"wanted": 1},
        {"groups": [GROUP, ("other", 0, TASK)], "claimed_from": [GROUP, ("other", 0, TASK)]},
        {"claimed_from": []},
    ],
    ids=["a backlog", "no room after it", "two groups", "a group of others"],
)
def test_a_whole_claim_goes_at_once_when_it_is_due(case):
    assert not chosen_when_due(**case).are_used


def test_before_a_look_none_goes_first():
    marks = Marks(clock=Clock())
    marks.choose(wanted=10)
    marks.answered(is_short=True)
    marks.note([lease()])
    assert (marks.choose(wanted=10), marks.goes_first) == ({}, False)


@quick
def test_while_no_whole_claim_is_due_all_that_is_wanted_is_claimed_from_behind_the_mark(session):
    turn, clock = idle_turn(session)
    clock.now = 0.0  # Before the instant from which on a whole claim is due.
    new = [JobFactory() for _ in range(2)]
    assert (claim_ids(session, turn=turn, limit=2), turn.more_in_seconds) == ([job.id for job in new], None)
    assert turn.marks.are_used


def idle_turn(session, **changes):
    """Return the turn of a claim that has emptied the queue, a whole one due again, and its clock."""
    clock = Clock()
    turn = Turn(marks=Marks(clock=clock))
    JobFactory()
    turn.marks.know([])
    assert len(claim_ids(session, turn=turn, **changes)) == 1
    clock.now += REST_AT_MOST_SECONDS
    return turn, clock


@quick
def test_before_the_whole_claim_one_job_alone_is_taken(session):
    turn, _ = idle_turn(session)
    urgent, late = JobFactory(priority=10), JobFactory(run_at=from_now(-3600))
    new = [JobFactory() for _ in range(2)]
    assert (claim_ids(session, turn=turn, limit=4), turn.more_in_seconds) == ([new[0].id], 0.0)
    assert claim_ids(session, turn=turn, limit=3) == [urgent.id, late.id, new[1].id]


@quick
def test_over_a_backlog_what_is_hidden_is_not_passed_over_when_a_whole_claim_is_due(session):
    turn, clock = idle_turn(session, limit=1)
    waiting = [JobFactory() for _ in range(3)]
    for expected in waiting[:2]:
        assert claim_ids(session, turn=turn, limit=1) == [expected.id]
        clock.now += REST_AT_MOST_SECONDS
    late = JobFactory(run_at=from_now(-3600))
    assert claim_ids(session, turn=turn, limit=2) == [late.id, waiting[2].id]


def test_a_mark_never_goes_back():
    clock = Clock()
    marks = Marks(clock=clock)
    marks.choose(wanted=1)
    clock.now += 1
    marks.answered(is_short=False)
    marks.know([])
    marks.note([lease(run_epoch=5.0, id=7), lease(run_epoch=6.0, id=3), lease(queue="other")])
    marks.note([lease(run_epoch=4.0, id=9)])
    assert marks.choose(wanted=1) == {("other", 0, TASK): (1.0, 1), ("q", 0, TASK): (6.0, 3)}


def test_what_a_look_saw_is_known_and_of_the_others_those_claimed_from_last():
    clock = Clock()
    marks = Marks(clock=clock)
    marks.choose(wanted=1)
    clock.now += 1
    marks.answered(is_short=False)
    marks.note([lease(queue="kept")])
    assert marks.choose(wanted=1) == {}, "before a look a claim must be whole"
    marks.know([])
    for number in range(MOST_GROUPS + 5):
        marks.note([lease(queue="kept"), lease(queue=f"q{number}")])
    assert marks.choose(wanted=1) == {}, "with too many groups a claim must be whole"
    clock.now += 1
    marks.answered(is_short=False)
    marks.know([("seen", 1, TASK), ("kept", 0, TASK)])
    chosen = marks.choose(wanted=1)
    assert len(chosen) == MOST_GROUPS
    assert list(chosen.items())[-2:] == [(("seen", 1, TASK), FIRST), (("kept", 0, TASK), (1.0, 1))]
    assert ("q0", 0, TASK) not in chosen
    marks.know([(f"q{number}", 0, TASK) for number in range(MOST_GROUPS + 1)])
    assert marks.choose(wanted=1) == {}
