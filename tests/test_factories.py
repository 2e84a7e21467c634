import pytest

from pgqueue.states import FINAL, State
from tests import factories
from tests.factories import LEGAL, JobFactory

pytestmark = pytest.mark.django_db

OTHERS = [
    factories.OperationKeyFactory,
    factories.AttemptFactory,
    factories.EffectFactory,
    factories.QueueFactory,
    factories.WorkerFactory,
    factories.OperatorActionFactory,
    factories.BulkActionFactory,
    factories.MinuteStatFactory,
]


def traits_of(row_factory):
    return set(row_factory._meta.parameters)


@pytest.mark.parametrize("shape", LEGAL, ids=lambda shape: "-".join(shape) or "plain")
def test_every_legal_shape_is_accepted_by_the_constraints(shape):
    job = JobFactory(**shape)
    assert (job.finished_at is not None) == (job.state in FINAL)
    assert (job.lease_until is not None) == (job.state == State.RUNNING)


def test_every_trait_and_every_state_is_among_the_legal_shapes():
    assert traits_of(JobFactory) - {"ended"} == {name for shape in LEGAL for name in shape} & traits_of(JobFactory)
    assert {JobFactory(queue=f"q{n}", **shape).state for n, shape in enumerate(LEGAL)} == set(State)


@pytest.mark.parametrize("row_factory", OTHERS)
def test_the_other_rows_are_accepted(row_factory):
    assert row_factory().pk
    for trait in traits_of(row_factory):
        assert row_factory(**{trait: True}).pk


def test_instants_are_the_databases():
    job = JobFactory(expired=True)
    assert job.claimed_at < job.lease_until < job.created_at + (job.created_at - job.claimed_at)


def test_a_later_trait_wins():
    assert JobFactory(keyed=True, alone=True).lane == 2
    assert JobFactory(stop_requested=True, expired=True).lease_until < JobFactory(running=True).lease_until
