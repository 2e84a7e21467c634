from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import BaseCommand, CommandError

from demo_project.campaign.loading import load


class Command(BaseCommand):
    help = "Load a CSV file (user_id, name, phone), enqueue a coupon for each and the payouts; print the campaign's id."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--payouts", type=Path, metavar="FILE", help="user_id, task, cents, account")
        parser.add_argument("--campaign", required=True, metavar="NAME")

    def handle(self, *, file: Path, payouts: Path | None, campaign: str, **options: object) -> str:
        try:
            loaded = load(file, campaign_name=campaign, payouts=payouts)
        except (OSError, KeyError, ValueError) as error:
            raise CommandError(f"{file} cannot be loaded: {error!r}") from error
        return str(loaded.campaign_id)
