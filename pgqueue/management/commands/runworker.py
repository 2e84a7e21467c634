"""`manage.py runworker`."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ... import conf
from ...protocol.connecting import job_alias
from ...worker.options import Options
from ...worker.process import EXIT_OK, run_worker

LEVELS = {0: logging.CRITICAL, 1: logging.INFO}


def positive(kind: type[int] | type[float]) -> Any:
    """Return an argument type for numbers above zero."""

    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a number") from None
        if not 0 < number < float("inf"):
            raise ArgumentTypeError(f"{text!r} must be greater than zero, and finite")
        return number

    return parse


class Command(BaseCommand):
    """Arguments, then one call."""

    help = "Run jobs until SIGTERM or SIGINT; the first drains, a second leaves at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options; defaults come from `PGQUEUE`."""
        settings = conf.current()
        parser.add_argument("--queue", action="append", metavar="NAME", help="Serve only this queue; may be repeated.")
        parser.add_argument("--exclude-queue", action="append", default=[], metavar="NAME", help="Serve all but this.")
        parser.add_argument("--concurrency", type=positive(int), default=settings.concurrency, help="Threads.")
        parser.add_argument(
            "--lease-seconds", type=positive(float), default=settings.lease_seconds, help="Length of a lease."
        )
        parser.add_argument(
            "--poll-seconds",
            type=positive(float),
            default=settings.poll_seconds,
            help="Longest sleep when idle.",
        )
        parser.add_argument("--burst", action="store_true", help="Stop as soon as nothing is due.")
        parser.add_argument("--max-jobs", type=positive(int), help="Stop after this many jobs.")
        parser.add_argument("--database", help="Alias of the database the jobs are in.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run one worker process; exit with its status."""
        _log_to_stderr(options["verbosity"])
        status = _run(_options(options))
        if status != EXIT_OK:
            sys.exit(status)


def _options(given: dict[str, Any]) -> Options:
    if given["queue"] and given["exclude_queue"]:
        raise CommandError("--queue names what to serve: --exclude-queue cannot be given beside it.")
    alias = given["database"] or job_alias()
    if alias not in connections:
        raise CommandError(f"There is no database {alias!r}; settings.DATABASES has: {', '.join(connections)}.")
    if connections[alias].vendor != "postgresql":
        raise CommandError(f"Database {alias!r} is {connections[alias].display_name}: pgqueue needs PostgreSQL.")
    return Options(
        alias=alias,
        concurrency=given["concurrency"],
        lease_seconds=given["lease_seconds"],
        poll_seconds=given["poll_seconds"],
        queues=tuple(given["queue"]) if given["queue"] else None,
        excluded=tuple(given["exclude_queue"]),
        burst=given["burst"],
        max_jobs=given["max_jobs"],
    )


def _run(options: Options) -> int:
    try:
        return run_worker(options)
    except psycopg.errors.UndefinedTable as error:
        raise CommandError(
            f"The queue's tables are missing in database {options.alias!r}: run manage.py migrate."
        ) from error
    except psycopg.OperationalError as error:
        raise CommandError(f"Database {options.alias!r} cannot be reached: {error}") from error


def _log_to_stderr(verbosity: int) -> None:
    """Show the worker's log lines unless the project's LOGGING already takes them."""
    log = logging.getLogger("pgqueue")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(LEVELS.get(verbosity, logging.DEBUG))
