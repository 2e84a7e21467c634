"""Limits: what bounds the jobs of a queue, tenant, task or resource, as the console shows and changes it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from pgqueue.models import Job, Limit
from tests.admin.console import audited, checksums, confirm_url, filled, page
from tests.admin.test_pages import plain
from tests.factories import JobFactory, LimitFactory

pytestmark = pytest.mark.django_db
LIMITS = "/admin/pgqueue/limit/"


def test_the_list_says_how_many_run_and_how_many_may(operator: Client) -> None:
    LimitFactory(id="queue:default", max_running=3)
    LimitFactory(id="tenant:acme", rate_per_second=2.5, burst=4, tokens=4.0, refilled_at="2026-01-01T00:00:00Z")
    for _ in range(2):
        JobFactory(running=True, tenanted=True)
    said = plain(operator.get(LIMITS))
    assert "queue:default active 2 / 3 - 1" in said
    assert "tenant:acme active 2 / - 2.5, at most 4 at once 1" in said
    assert "tenant:acme" not in plain(operator.get(LIMITS, {"kind": "queue"}))


def test_a_job_leads_to_what_bounds_it_also_where_nothing_does_yet(operator: Client) -> None:
    job = JobFactory(tenanted=True)
    text = operator.get(page(job)).text
    for name in ("queue:default", f"task:{job.task}", "tenant:acme"):
        assert f'href="{page(Limit(id=name))}"' in text
    limit = Limit(id="tenant:acme")
    assert operator.get(page(limit)).status_code == 200
    token = operator.get(confirm_url(limit, "set_limit")).context["token"]
    assert operator.post(confirm_url(limit, "set_limit"), filled(token, limit)).status_code == 303
    assert Limit.objects.get().max_running == 0


def test_an_empty_field_lifts_the_bound(operator: Client) -> None:
    limit = LimitFactory(max_running=3)
    url = confirm_url(limit, "set_limit")
    form = filled(operator.get(url).context["token"], limit, max_running="")
    assert operator.post(url, form).status_code == 303
    assert Limit.objects.get().max_running is None


@pytest.mark.parametrize(
    ("verb", "field", "typed"),
    [
        *(("set_limit", "max_running", typed) for typed in ("-1", "2.5", "x", str(2**31))),
        *(("set_rate", "rate_per_second", typed) for typed in ("0", "-1", "x", "nan", "inf")),
        ("set_rate", "burst", "0"),
        *(("set_weight", "weight", typed) for typed in ("", "0", "1001")),
    ],
)
def test_a_number_that_cannot_be_is_said_and_changes_nothing(
    verb: str, field: str, typed: str, operator: Client
) -> None:
    limit = LimitFactory()
    before = checksums()
    url = confirm_url(limit, verb)
    answer = operator.post(url, filled(operator.get(url).context["token"], limit, **{field: typed}))
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert checksums() == before


@pytest.mark.parametrize(
    ("name", "verb"), [("queue:mail", "pause_jobs"), ("queue:mail", "set_weight"), ("task:t", "set_weight")]
)
def test_a_verb_that_is_not_for_its_kind_is_refused_with_the_reason(name: str, verb: str, operator: Client) -> None:
    limit = LimitFactory(id=name)
    said = plain(operator.get(page(limit)))
    assert ("Only tenants take turns." if verb == "set_weight" else "A queue is paused on its own page.") in said
    assert operator.get(confirm_url(limit, verb)).status_code == 404
    assert operator.post(confirm_url(limit, verb), filled("x", limit)).status_code == 404
    assert audited() == []


@pytest.mark.parametrize("name", ["acme", "shop:acme", "tenant:", "tenant:" + "a" * 201])
def test_what_no_limit_is_called_is_not_found(name: str, operator: Client) -> None:
    for last in ("change", "do/set_limit"):
        assert operator.get(f"{LIMITS}{name}/{last}/").status_code in (302, 404)


def not_there(user: Any, verb: str, queue: str, task: str | None) -> bool:
    return queue != "payments"


def test_nobody_moves_a_job_where_they_may_not_act(operator: Client, settings: Any) -> None:
    settings.PGQUEUE = {"CONSOLE_AUTHORIZE": "tests.admin.test_limits.not_there"}
    job = JobFactory()
    url = confirm_url(job, "move_queue")
    form = filled(operator.get(url).context["token"], job, queue="payments")
    assert operator.post(url, form).status_code == 403
    assert Job.objects.get().queue == "default"
    assert audited()[0][2] == "forbidden"
