"""The inbox of unknown outcomes."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.admin.console import page
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
