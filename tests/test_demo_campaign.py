"""The campaign desk: coupons are issued once, loads are repeatable, provider errors become the right endings."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from demo_project.campaign import gateway, tasks
from demo_project.campaign.loading import load, read_recipients
from demo_project.campaign.models import Campaign, Coupon, Credit, Payout, Recipient
from demo_project.campaign.tasks import issue_once
from pgqueue.admin.survey import forget
from pgqueue.models import ApprovalRequest, Effect, Job
from pgqueue.operations import Actor, act
from pgqueue.probing import ask_next
from tests.inline import row, work, work_through_retries


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


@pytest.fixture
def coupon_job(recipients: Path) -> int:
    """A campaign of one recipient; returns the coupon's job."""
    recipients.write_text("user_id,name,phone\n1,Ada,+447700900001\n")
    return load(recipients, campaign_name="Autumn sale").job_ids[0]


@pytest.mark.django_db(transaction=True)
def test_the_coupon_is_sent_under_the_operation_key_and_marked(coupon_job: int, provider: Callable) -> None:
    calls = provider("msg-1")

    work()

    job, coupon = row(coupon_job), Coupon.objects.get()
    assert job.state == "succeeded"
    assert calls == [("+447700900001", f"coupon:{coupon.campaign_id}:1:sms", job.fence)]
    assert (coupon.sms_message_id, coupon.sent_at is None) == ("msg-1", False)


@pytest.mark.django_db(transaction=True)
def test_a_throttled_coupon_waits_as_long_as_asked(coupon_job: int, provider: Callable) -> None:
    provider(gateway.ThrottledError(3600))

    work()

    job = row(coupon_job)
    assert (job.state, job.unknown_effects, job.last_error_class) == ("retrying", 0, "pgqueue.exceptions.Retry")
    assert job.run_at > timezone.now() + timedelta(minutes=59)


@pytest.mark.django_db(transaction=True)
def test_a_refused_coupon_is_buried(coupon_job: int, provider: Callable) -> None:
    provider(gateway.RefusedError(422, "no such number"))

    work()

    job = row(coupon_job)
    assert (job.state, job.unknown_effects) == ("dead", 0)
    assert "422, no such number" in job.last_error


@pytest.mark.django_db(transaction=True)
def test_a_provider_that_hangs_up_is_asked_again_under_the_same_key(coupon_job: int, provider: Callable) -> None:
    calls = provider(gateway.UnavailableError("hung up"))
    work()
    assert (row(coupon_job).state, row(coupon_job).unknown_effects) == ("retrying", 1)

    calls += provider("msg-1")
    work_through_retries()

    assert row(coupon_job).state == "succeeded"
    assert Coupon.objects.get().sms_message_id == "msg-1"


class Payments:
    """The provider's side of payments: what it did, and what it does wrong at the first request under each key."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.asked: list[str] = []
        self.done: list[str] = []

    def pay(self, account: str, cents: int, *, idempotency_key: str, fence: int) -> str:
        self.asked.append(idempotency_key)
        is_first = len(self.asked) == 1
        if not (is_first and self.fault == "loses") and idempotency_key not in self.done:
            self.done.append(idempotency_key)
        if is_first:
            raise gateway.UnavailableError("hung up")
        return "pay-1"

    def find(self, page: str, key: str) -> str | None:
        assert page == "payments"
        return "pay-1" if key in self.done else None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fault", ["hangs-up", "loses"])
@pytest.mark.parametrize("task", ["pay_again", "pay_and_ask", "pay_by_hand"])
def test_a_payout_whose_outcome_is_unknown_recovers_as_its_task_declares(
    task: str, fault: str, recipients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payouts = tmp_path / "payouts.csv"
    payouts.write_text(f"user_id,task,cents,account\n1,{task},500,acct-1.{fault}\n")
    payments = Payments(fault)
    monkeypatch.setattr(tasks.gateway, "pay", payments.pay)
    monkeypatch.setattr(tasks.gateway, "find", payments.find)
    *_, job_id = load(recipients, campaign_name="Autumn sale", payouts=payouts).job_ids

    work(queues=("payouts",))
    assert row(job_id).unknown_effects == 1
    Effect.objects.update(deadline_at=timezone.now() - timedelta(seconds=1))
    Job.objects.filter(probe_at__isnull=False).update(probe_at=timezone.now())
    with connections["default"].cursor() as cursor:
        ask_next(lambda: nullcontext(cursor.connection), worker_id=-1, tasks=[tasks.pay_and_ask.module_path])
    Job.objects.filter(state="retrying").update(run_at=timezone.now())
    work(queues=("payouts",))

    requests = {"pay_again": 2, "pay_and_ask": 1 if fault == "hangs-up" else 2, "pay_by_hand": 1}[task]
    assert len(payments.asked) == requests
    assert len(set(payments.asked)) == 1
    payout, waits = Payout.objects.get(), task == "pay_by_hand"
    assert (row(job_id).state, payout.payment_id) == (("unknown", None) if waits else ("succeeded", "pay-1"))
    assert len(payments.done) == (0 if waits and fault == "loses" else 1)


@pytest.mark.django_db(transaction=True)
def test_a_credit_and_its_job_are_there_together(
    recipients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payouts = tmp_path / "payouts.csv"
    payouts.write_text("user_id,task,cents,account\n1,give_credit,500,acct-1\n")
    answers = [gateway.UnavailableError("hung up"), None]

    def check(account: str, *, key: str, fence: int) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(tasks.gateway, "check", check)
    *_, job_id = load(recipients, campaign_name="Autumn sale", payouts=payouts).job_ids
    work(queues=("payouts",))
    assert (row(job_id).state, Credit.objects.count()) == ("retrying", 0)

    Job.objects.filter(pk=job_id).update(run_at=timezone.now())
    work(queues=("payouts",))

    assert (row(job_id).state, Credit.objects.count()) == ("succeeded", 1)


def test_every_shipped_payout_has_an_account_of_its_own_and_two_wait_for_a_person() -> None:
    with (Path(tasks.__file__).parents[1] / "payouts.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert len({row["account"] for row in rows}) == len({row["user_id"] for row in rows}) == len(rows)
    assert Counter(row["task"] for row in rows).keys() == {"give_credit", "pay_again", "pay_and_ask", "pay_by_hand"}
    assert sum(row["task"] == "pay_by_hand" and "." in row["account"] for row in rows) == 2


def test_where_the_provider_forgets_keys_it_is_asked() -> None:
    script = (
        "import django; django.setup(); from demo_project.campaign import tasks;"
        " print(tasks.send_coupon.recovery, tasks.pay_again.recovery)"
    )
    environment = {"DJANGO_SETTINGS_MODULE": "demo_project.settings", "DATABASE_URL": "postgresql:///unused"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment, "PROVIDER_KEEPS_KEYS": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["probe", "probe"]


@pytest.mark.django_db
@pytest.mark.parametrize("model", ["recipient", "campaign", "coupon", "payout", "credit"])
def test_the_admin_lists_what_there_is(admin_client: Client, campaign: Campaign, model: str) -> None:
    issue_once(1, campaign.pk)
    Payout.objects.create(user_id=1, campaign=campaign, account="acct-1", cents=500)
    Credit.objects.create(user_id=1, campaign=campaign, cents=500)

    page = admin_client.get(reverse(f"admin:campaign_{model}_changelist"))

    assert page.status_code == 200
    assert b"1 " + model.encode() in page.content


@pytest.mark.django_db
def test_a_coupon_cannot_be_edited(admin_client: Client, campaign: Campaign) -> None:
    coupon = issue_once(1, campaign.pk)

    assert admin_client.get(reverse("admin:campaign_coupon_add")).status_code == 403
    assert admin_client.post(reverse("admin:campaign_coupon_change", args=[coupon.pk])).status_code == 403
    assert admin_client.post(reverse("admin:campaign_coupon_delete", args=[coupon.pk])).status_code == 403


@pytest.mark.django_db
def test_the_showcase_is_written_once_and_needs_a_person(admin_client: Client) -> None:
    for _ in range(2):
        call_command("demo_showcase", stdout=StringIO())
    assert Job.objects.filter(state="dead").count() == 300
    forget()
    needs = [str(need["text"]) for need in admin_client.get("/admin/pgqueue/overview/").context["needs"]]
    for told in ("1 request waits for approval", "Queue “emails” was paused", "has been silent", "CardDeclined"):
        assert any(told in need for need in needs), told
    asked = ApprovalRequest.objects.get()
    actor = Actor(id="1", name="demo")
    assert act("approve", asked.pk, version_seen=asked.version, actor=actor, reason="checked").outcome == "applied"
