from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta

from django.core.management.base import BaseCommand
from django.utils import timezone

from demo_project.shop.tasks import charge_card, export_orders, send_mail


class Command(BaseCommand):
    help = "Enqueue the broken shop's jobs: cards, exports, or mails now and later."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("what", choices=["cards", "exports", "mails"])
        parser.add_argument("--jobs", type=int, default=2)
        parser.add_argument("--later", type=int, default=0, help="Mails more, one due every five seconds.")

    def handle(self, *, what: str, jobs: int, later: int, **options: object) -> None:
        now = timezone.now()
        first = int(now.timestamp()) % 1_000_000
        for number in range(jobs):
            match what:
                case "cards":
                    charge_card.using(operation_key=f"order:{first + number}").enqueue(first + number)
                case "exports":
                    export_orders.enqueue(f"{now - timedelta(days=number + 1):%Y-%m-%d}")
                case "mails":
                    send_mail.enqueue(7000 + number)
        for number in range(later):
            send_mail.using(run_after=now + timedelta(seconds=5 * number)).enqueue(7000 + jobs + number)
