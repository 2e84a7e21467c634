"""From CSV files to recipients, a campaign, and one job for each message and each payout."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction

from demo_project.campaign.models import Campaign, Payout, Recipient
from demo_project.campaign.tasks import give_credit, pay_again, pay_and_ask, pay_by_hand, send_coupon
from pgqueue import enqueue_many

PAYING = {task.func.__name__: task for task in (pay_again, pay_and_ask, pay_by_hand)}


@dataclass(frozen=True)
class Loaded:
    """`job_ids` holds one id for each recipient, then one for each payout, enqueued now or by an earlier load."""

    campaign_id: int
    job_ids: list[int]


def load(path: Path, *, campaign_name: str, payouts: Path | None = None) -> Loaded:
    """Load the recipients in `path` into the campaign, enqueue a coupon for each, and what `payouts` lists.

    One transaction: a campaign whose jobs are missing never exists. Loading the same files again enqueues
    nothing, since each job's operation key is spent.
    """
    recipients = read_recipients(path)
    rows = [] if payouts is None else _read(payouts)
    with transaction.atomic():
        campaign, _ = Campaign.objects.get_or_create(name=campaign_name)
        Recipient.objects.bulk_create(
            recipients,
            update_conflicts=True,
            unique_fields=["user_id"],
            update_fields=["name", "phone"],
        )
        job_ids = enqueue_many(
            send_coupon.using(operation_key=f"coupon:{campaign.pk}:{recipient.pk}").bind(
                user_id=recipient.pk, campaign_id=campaign.pk
            )
            for recipient in recipients
        )
        job_ids += enqueue_many(_payouts(campaign, rows))
    return Loaded(campaign.pk, job_ids)


def read_recipients(path: Path) -> list[Recipient]:
    """Read user_id, name and phone from each row; the objects are not saved."""
    return [Recipient(user_id=int(row["user_id"]), name=row["name"], phone=row["phone"]) for row in _read(path)]


def _payouts(campaign: Campaign, rows: list[dict[str, str]]) -> Iterator[Any]:
    """Yield one call for each row; what the provider is to pay is written down first."""
    for row in rows:
        user_id, cents, account = int(row["user_id"]), int(row["cents"]), row["account"]
        operation_key = f"payout:{campaign.pk}:{user_id}"
        if row["task"] == give_credit.func.__name__:
            yield give_credit.using(operation_key=operation_key).bind(user_id, campaign.pk, cents, account)
            continue
        given = {"account": account, "cents": cents}
        payout, _ = Payout.objects.get_or_create(user_id=user_id, campaign=campaign, defaults=given)
        yield PAYING[row["task"]].using(operation_key=operation_key).bind(payout.pk)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
