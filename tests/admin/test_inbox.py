"""The inbox of unknown outcomes."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.admin.console import client_with, confirm_url, filled, make, page, token_for
from tests.admin.test_overview import look
from tests.admin.test_pages import numbers, plain
from tests.factories import EffectFactory, JobFactory, from_now

pytestmark = pytest.mark.django_db
INBOX = "/admin/pgqueue/reconcile/"


def test_the_oldest_unknown_outcome_comes_first_with_its_effects(operator: Client) -> None:
    young = JobFactory(unknown=True, claimed_at=from_now(-100))
    old = JobFactory(unknown=True, claimed_at=from_now(-2_500))
    JobFactory(dead=True)
    EffectFactory(job_id=old.pk, name="charge")
    EffectFactory(job_id=old.pk, name="mail", stage="confirmed")
    answer = operator.get(INBOX)
    assert numbers(answer) == [old.pk, young.pk]
    said = plain(answer)
    assert f"41 min add #{old.pk} default charge (job:{old.pk}:charge) none: a person decides" in said
    assert "none on record: its worker may still be running it" in said
    assert "mail" not in said


def test_an_item_leads_to_the_job_where_it_is_decided(operator: Client) -> None:
    row = JobFactory(unknown=True)
    answer = operator.get(f"{INBOX}{row.pk}/change/")
    assert answer.headers["Location"] == page(row)


def test_the_overview_leads_to_the_inbox(operator: Client) -> None:
    JobFactory(unknown=True)
    assert look(operator).context["needs"][0]["url"] == INBOX


def test_two_operators_with_two_verdicts_one_wins_and_the_other_is_told(operator: Client) -> None:
    row = make("take", {"unknown": True})
    second = client_with("op2", "resolve_unknown", "view_job", "view_operatoraction")
    assert operator.post(confirm_url(row, "take"), filled(token_for(operator, row, "take"), row)).status_code == 303
    assert "Taken by op1" in plain(second.get(confirm_url(row, "did_not_happen")))
    tokens = [
        client.get(confirm_url(row, verb)).context["token"]
        for client, verb in ((operator, "happened_finish"), (second, "did_not_happen"))
    ]
    assert operator.post(confirm_url(row, "happened_finish"), filled(tokens[0], row)).status_code == 303
    answer = second.post(confirm_url(row, "did_not_happen"), filled(tokens[1], row))
    assert answer.status_code == 409
    assert "Changed by op1: It happened, nothing is left to do" in plain(answer)
    row.refresh_from_db()
    assert row.state == "succeeded"
