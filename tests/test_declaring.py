"""Tasks that follow a dead one, and the declaration that a setting makes compulsory."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks

from pgqueue import registry, task
from pgqueue.checks import check_probes, check_undeclared
from pgqueue.compat import InvalidTask
from pgqueue.enqueueing import enqueue_many
from pgqueue.models import Job, JobPayload
from pgqueue.operations import Actor, act
from pgqueue.states import Lane, State
from pgqueue.takeover import take_over_expired
from pgqueue.testing import drain_jobs, run_jobs
from tests.factories import EffectFactory, JobFactory
from tests.testapp import effect_tasks
from tests.testapp.effect_tasks import manual, mourned, undeclared
from tests.testapp.tasks import add

pytestmark = pytest.mark.django_db
MOURN = "tests.testapp.effect_tasks.mourn"


def forgotten(context) -> None: ...


ADA = Actor(id="1", name="ada")


def followers() -> list[Job]:
    return list(Job.objects.filter(task=MOURN).order_by("id"))


def fail(context: Any) -> None:
    raise RuntimeError("no")


def test_a_task_follows_a_job_that_failed_for_good():
    effect_tasks.script["run"] = fail
    id = int(mourned.enqueue().id)
    assert Job.objects.get(pk=id).on_dead == MOURN
    ran = drain_jobs()
    assert (ran[0].job_id, ran[0].state) == (id, State.DEAD)
    assert (ran[1].task, ran[1].result) == (MOURN, id)
    (follower,) = followers()
    assert (follower.parent_id, follower.queue, follower.max_attempts) == (id, "default", 8)


def test_nothing_follows_a_job_that_succeeded_or_will_be_tried_again():
    effect_tasks.script["run"] = lambda context: None
    mourned.enqueue()
    drain_jobs()
    effect_tasks.script["run"] = fail
    mourned.using(max_attempts=3).enqueue()
    run_jobs()
    assert followers() == []


def test_a_task_follows_a_job_that_was_lost_too_often(session):
    job = JobFactory(expired=True, lease_losses=3, lane=Lane.ALONE, on_dead=MOURN)
    take_over_expired(session)
    assert Job.objects.get(pk=job.pk).state == State.DEAD
    assert [follower.parent_id for follower in followers()] == [job.pk]


@pytest.mark.parametrize("verb", ["give_up", "give_up_unknown"])
def test_a_task_follows_a_job_that_an_operator_gave_up(verb):
    job = JobFactory(**({} if verb == "give_up" else {"unknown": True}), on_dead=MOURN)
    EffectFactory(job_id=job.pk)
    act(verb, job.pk, version_seen=job.version, actor=ADA, reason="why")
    assert [follower.parent_id for follower in followers()] == [job.pk]
    assert JobPayload.objects.get(job_id=followers()[0].pk).args == [job.pk]


def test_a_follower_that_nobody_here_knows_goes_beside_the_dead_job(session):
    job = JobFactory(
        expired=True, lease_losses=3, lane=Lane.ALONE, on_dead="other.tasks.mourn", queue="mail", priority=3
    )
    take_over_expired(session)
    follower = Job.objects.get(task="other.tasks.mourn")
    assert (follower.queue, follower.priority, follower.parent_id) == ("mail", 3, job.pk)


def test_the_follower_is_stored_by_every_way_to_enqueue():
    mourned.using(operation_key="once").enqueue()
    enqueue_many([mourned.bind(), mourned.bind()])
    assert set(Job.objects.values_list("on_dead", flat=True)) == {MOURN}


@pytest.mark.parametrize("name", ["", 7, "x" * 201])
def test_a_follower_is_a_task_or_a_name(name):
    with pytest.raises(InvalidTask, match="on_dead must be a task or the path of its function"):
        task(on_dead=name)(forgotten)


# a declaration that is compulsory


def test_a_task_without_a_policy_is_refused_where_one_is_required(settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "REQUIRE_RECOVERY": True}
    for enqueue in (undeclared.enqueue, lambda: enqueue_many([undeclared.bind()])):
        with pytest.raises(InvalidTask, match="REQUIRE_RECOVERY"):
            enqueue()
    assert not Job.objects.exists()
    manual.enqueue()


def test_the_check_lists_what_is_undeclared(settings):
    found = check_undeclared(None)
    assert {type(one) for one in found} == {checks.Warning}
    assert any(one.msg.startswith(f"{add.module_path} declares no recovery policy") for one in found)
    assert not any(one.msg.startswith(manual.module_path) for one in found)
    settings.PGQUEUE = {**settings.PGQUEUE, "REQUIRE_RECOVERY": True}
    assert {type(one) for one in check_undeclared(None)} == {checks.Error}


def test_the_check_finds_a_task_without_its_probe(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    task(recovery="probe", takes_context=True)(forgotten)
    assert [one.msg for one in check_probes(None) if "forgotten" in one.msg]
    assert not [one.msg for one in check_probes(None) if "effect_tasks.probed" in one.msg]
