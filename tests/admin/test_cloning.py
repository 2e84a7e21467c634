"""A job run again as a new one from its page: with other arguments, which nobody else is told."""

from __future__ import annotations

import pytest
from django.test import Client

from pgqueue.models import Job, JobPayload, OperatorAction
from tests.admin.console import confirm_url, filled, page, token_for
from tests.admin.test_pages import plain
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db
SECRET = "4111-1111"


def test_the_page_shows_the_old_operation_key_and_takes_other_arguments(operator: Client) -> None:
    job = JobFactory(running=True, operation_key="order:5531")
    shown = operator.get(confirm_url(job, "clone"))
    assert "order:5531" in plain(shown)
    assert shown.text.count("<textarea") == 2
    form = filled(token_for(operator, job, "clone"), job, new_args=f'["{SECRET}"]', new_kwargs='{"right": 2}')
    answer = operator.post(confirm_url(job, "clone"), form)
    new = Job.objects.latest("id")
    assert (answer.status_code, answer.headers["Location"]) == (303, page(new))
    assert JobPayload.objects.get(job_id=new.pk).args == [SECRET]
    action = OperatorAction.objects.get()
    assert SECRET not in f"{action.params} {action.facts} {operator.get(page(action)).text}"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"new_args": "{"}, "This is not JSON."),
        ({"new_args": '{"a": 1}'}, "This is no JSON list"),
        ({"new_kwargs": "[1]"}, "This is no JSON object"),
        ({"new_args": "[1, 2, 3]"}, "does not fit the task"),
        ({"new_kwargs": '{"wrong": 1}'}, "does not fit the task"),
    ],
)
def test_arguments_that_do_not_fit_come_back_with_what_is_wrong(
    typed: dict[str, str], says: str, operator: Client
) -> None:
    job = JobFactory(succeeded=True)
    answer = operator.post(confirm_url(job, "clone"), filled(token_for(operator, job, "clone"), job, **typed))
    assert answer.status_code == 422
    assert says in plain(answer)
    assert 'role="alert"' in answer.text
    (value,) = typed.values()
    assert value.replace('"', "&quot;") in answer.text
    assert 'name="seen"' in answer.text
    assert (Job.objects.count(), OperatorAction.objects.count()) == (1, 0)
