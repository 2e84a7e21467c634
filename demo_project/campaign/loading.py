"""From a CSV file to recipients, a campaign and one job each."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from django.db import transaction

from demo_project.campaign.models import Campaign, Recipient
from demo_project.campaign.tasks import send_coupon
from pgqueue import enqueue_many


@dataclass(frozen=True)
class Loaded:
    """`job_ids` holds one id for each recipient, whether enqueued now or by an earlier load."""

    campaign_id: int
    job_ids: list[int]


def load(path: Path, *, campaign_name: str) -> Loaded:
    """Load the recipients in `path` into the campaign and enqueue a coupon for each.

    One transaction: a campaign whose jobs are missing never exists. Loading the same file again enqueues
    nothing, since each job's operation key is spent.
    """
    recipients = read_recipients(path)
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
    return Loaded(campaign.pk, job_ids)


def read_recipients(path: Path) -> list[Recipient]:
    """Read user_id, name and phone from each row; the objects are not saved."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Recipient(user_id=int(row["user_id"]), name=row["name"], phone=row["phone"]) for row in csv.DictReader(file)
        ]
