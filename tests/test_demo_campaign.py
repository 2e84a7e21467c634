"""The campaign desk: coupons are issued once, loads are repeatable, provider errors become the right endings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from demo_project.campaign import gateway, tasks
from demo_project.campaign.loading import load, read_recipients
from demo_project.campaign.models import Campaign, Coupon, Recipient
from demo_project.campaign.tasks import issue_once, send_coupon
from pgqueue import Bury, Retry
from pgqueue.models import Job

CONTEXT = SimpleNamespace(operation_key="coupon:7:1", fence=3)


@pytest.fixture
def recipients(tmp_path: Path) -> Path:
    path = tmp_path / "recipients.csv"
    path.write_text("user_id,name,phone\n1,Ada,+447700900001\n2,Bo,+447700900002\n")
    return path


@pytest.fixture
def campaign() -> Campaign:
    Recipient.objects.create(user_id=1, name="Ada", phone="+447700900001")
    return Campaign.objects.create(name="Autumn sale")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str, int]]]:
    """Put an answer in the place of the gateway; returns the list that its calls go to."""

    def answer_with(answer: str | Exception) -> list[tuple[str, str, int]]:
        calls = []

        def send(to: str, text: str, *, idempotency_key: str, fence: int) -> str:
            calls.append((to, idempotency_key, fence))
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(tasks.gateway, "send", send)
        return calls

    return answer_with


@pytest.mark.django_db
def test_loading_enqueues_one_job_for_each_recipient(recipients: Path) -> None:
    loaded = load(recipients, campaign_name="Autumn sale")

    assert Recipient.objects.count() == 2
    jobs = Job.objects.order_by("id")
    assert [job.pk for job in jobs] == loaded.job_ids
    assert [job.operation_key for job in jobs] == [f"coupon:{loaded.campaign_id}:{n}" for n in (1, 2)]
    assert {(job.queue, job.recovery, job.max_attempts) for job in jobs} == {("sms", "idempotent", 8)}


@pytest.mark.django_db
def test_loading_again_enqueues_nothing(recipients: Path) -> None:
    first = load(recipients, campaign_name="Autumn sale")

    assert load(recipients, campaign_name="Autumn sale") == first
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_another_campaign_has_jobs_of_its_own(recipients: Path) -> None:
    load(recipients, campaign_name="Autumn sale")
    load(recipients, campaign_name="Winter sale")

    assert Job.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_a_load_that_fails_leaves_neither_campaign_nor_jobs(recipients: Path) -> None:
    recipients.write_text(recipients.read_text() + "2,Bo again,+447700900003\n")

    with pytest.raises(Exception, match="cannot affect row a second time"):
        load(recipients, campaign_name="Autumn sale")

    assert not Campaign.objects.exists()
    assert not Job.objects.exists()


def test_the_shipped_file_has_500_recipients_with_numbers_of_their_own() -> None:
    shipped = read_recipients(Path(tasks.__file__).parents[1] / "recipients.csv")

    assert len({recipient.user_id for recipient in shipped}) == 500
    assert len({recipient.phone for recipient in shipped}) == 500


@pytest.mark.django_db(transaction=True)
def test_workers_at_once_issue_one_coupon(campaign: Campaign) -> None:
    at_once = threading.Barrier(8)

    def issue() -> str:
        at_once.wait()
        try:
            return issue_once(1, campaign.pk).code
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        codes = {future.result() for future in [pool.submit(issue) for _ in range(8)]}

    assert codes == {Coupon.objects.get().code}


@pytest.mark.django_db
def test_the_coupon_is_sent_under_the_operation_key_and_marked(campaign: Campaign, provider: Callable) -> None:
    calls = provider("msg-1")

    send_coupon.func(CONTEXT, 1, campaign.pk)

    assert calls == [("+447700900001", "coupon:7:1:sms", 3)]
    coupon = Coupon.objects.get()
    assert (coupon.sms_message_id, coupon.sent_at is None) == ("msg-1", False)


@pytest.mark.django_db
def test_a_coupon_that_is_marked_sent_is_not_sent_again(campaign: Campaign, provider: Callable) -> None:
    calls = provider("msg-1")

    send_coupon.func(CONTEXT, 1, campaign.pk)
    send_coupon.func(CONTEXT, 1, campaign.pk)

    assert len(calls) == 1


@pytest.mark.django_db
def test_a_throttled_coupon_waits_as_long_as_asked(campaign: Campaign, provider: Callable) -> None:
    provider(gateway.ThrottledError(4))

    with pytest.raises(Retry) as caught:
        send_coupon.func(CONTEXT, 1, campaign.pk)

    assert caught.value.after_seconds == 4
    assert Coupon.objects.get().sms_message_id is None


@pytest.mark.django_db
def test_a_refused_coupon_is_buried(campaign: Campaign, provider: Callable) -> None:
    provider(gateway.RefusedError(422, "no such number"))

    with pytest.raises(Bury, match="422, no such number"):
        send_coupon.func(CONTEXT, 1, campaign.pk)


@pytest.mark.django_db
def test_a_failing_provider_is_left_to_the_queue(campaign: Campaign, provider: Callable) -> None:
    provider(gateway.UnavailableError("hung up"))

    with pytest.raises(gateway.UnavailableError):
        send_coupon.func(CONTEXT, 1, campaign.pk)


@pytest.mark.django_db
@pytest.mark.parametrize("model", ["recipient", "campaign", "coupon"])
def test_the_admin_lists_what_there_is(admin_client: Client, campaign: Campaign, model: str) -> None:
    issue_once(1, campaign.pk)

    page = admin_client.get(reverse(f"admin:campaign_{model}_changelist"))

    assert page.status_code == 200
    assert b"1 " + model.encode() in page.content


@pytest.mark.django_db
def test_a_coupon_cannot_be_edited(admin_client: Client, campaign: Campaign) -> None:
    coupon = issue_once(1, campaign.pk)

    assert admin_client.get(reverse("admin:campaign_coupon_add")).status_code == 403
    assert admin_client.post(reverse("admin:campaign_coupon_change", args=[coupon.pk])).status_code == 403
    assert admin_client.post(reverse("admin:campaign_coupon_delete", args=[coupon.pk])).status_code == 403
