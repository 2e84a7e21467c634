"""Bulk actions in the background: whose rights count, and whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User

from pgqueue import bulk
from pgqueue.models import BulkAction, BulkItem, Job, OperatorAction
from pgqueue.operations import Actor
from tests.races.rows import add_jobs

ROWS = 450
MINE = ("requeue_job", "bulk_job")


def starter(*codenames: str) -> User:
    user = User.objects.create_user("op1", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="pgqueue", codename__in=codenames))
    return user


def started(user: User, *, rows: int = ROWS, **given: Any) -> BulkAction:
    """Freeze dead jobs and start the set as a user."""
    add_jobs(rows, dead=True)
    id = bulk.freeze("requeue", Job.objects.filter(state="dead"), actor=Actor.of(user), filter="all")
    assert id is not None
    assert bulk.start(id, actor=Actor.of(user), reason="why", ticket="", spread_seconds=0, **given)
    return BulkAction.objects.get(pk=id)


def noted(outcome: str | None) -> int:
    return BulkItem.objects.filter(outcome=outcome).count()


@pytest.mark.django_db
def test_a_set_is_run_chunk_by_chunk_as_whoever_started_it() -> None:
    started(starter(*MINE))
    assert [bulk.run_in_background() for _ in range(4)] == [200, 200, 50, 0]
    assert BulkAction.objects.get().state == "done"
    assert set(OperatorAction.objects.values_list("outcome", "actor_name", "reason")) == {("applied", "op1", "why")}
    assert Job.objects.filter(state="pending").count() == ROWS


@pytest.mark.django_db
@pytest.mark.parametrize("lost", [*MINE, "active", "deleted", "read_only"])
def test_a_set_whose_starter_may_no_longer_is_stopped(lost: str, settings: Any) -> None:
    user = starter(*MINE)
    started(user)
    bulk.run_in_background()
    if lost == "active":
        User.objects.update(is_active=False)
    elif lost == "deleted":
        user.delete()
    elif lost == "read_only":
        settings.PGQUEUE = {"CONSOLE_READ_ONLY": True}
    else:
        user.user_permissions.remove(Permission.objects.get(codename=lost))
    assert bulk.run_in_background() == 0
    assert list(BulkAction.objects.values_list("state", "stopped_by")) == [("stopped", "")]
    assert (noted("applied"), noted(None)) == (200, ROWS - 200)


@pytest.mark.django_db
def test_several_sets_run_in_turns_and_one_that_fails_holds_up_none(monkeypatch: pytest.MonkeyPatch) -> None:
    user = starter(*MINE)
    first, second, third = started(user), started(user, rows=250), started(user, rows=10)
    run_chunk = bulk.run_chunk

    def failing(id: Any, **given: Any) -> int:
        if id == first.pk:
            raise RuntimeError
        return run_chunk(id, **given)

    monkeypatch.setattr(bulk, "run_chunk", failing)
    assert bulk.run_in_background() == 400
    assert [
        BulkItem.objects.filter(bulk_id=each.pk).exclude(outcome=None).count() for each in (first, second, third)
    ] == [
        0,
        200,
        200,
    ]
