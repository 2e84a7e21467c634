"""`manage.py runworker`."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
from django.conf import settings as django_settings
from django.core.management.base import CommandError, DjangoHelpFormatter

from ... import conf, registry
from ...bounds import LONGEST_SECONDS
from ...compat import Task
from ...logs import show_on_stderr
from ...protocol.refusing import why_no_start
from ...states import Lane
from ...worker.exits import MEANINGS, Exit
from ...worker.inbox import Inbox, Signal
from ...worker.lifeline import WorkerEnd
from ...worker.options import Options
from ...worker.process import run_worker
from ...worker.pulse import PulseWriter
from ...worker.quarantine import LEAST_DEAF_SECONDS, ParentWatch, command_for
from ...worker.recycling import resident_mb, run_reloading, start_anew
from ...worker.shutdown import run_to_the_end
from ...worker.start import rehearse
from ...worker.supervisor import Patience, close_connections, other_threads, supervise
from ..saying import QueueCommand, chosen_alias

DJANGOS_LOGGER = Task.__module__.removesuffix(".base")
MAX_JOBS = "Stop after this many jobs. Those that run in a process of their own are not counted."


def positive(kind: type[int] | type[float]) -> Any:
    """Return an argument type for numbers above zero."""

    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a number") from None
        if not 0 < number <= LONGEST_SECONDS:
            raise ArgumentTypeError(f"{text!r} must be greater than zero, and at most {LONGEST_SECONDS}")
        return number

    return parse


class ExitsAsWritten(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the lines of the table of exit statuses."""


class Command(QueueCommand):
    """Arguments, then one call."""

    help = "Run jobs until SIGTERM or SIGINT; the first drains, a second leaves at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options; defaults come from `PGQUEUE`."""
        settings = conf.current()
        parser.formatter_class = ExitsAsWritten
        parser.epilog = "exit status:\n" + "\n".join(f"  {code:<4d}{why}" for code, why in MEANINGS.items())
        parser.add_argument("--queue", action="append", metavar="NAME", help="Serve only this queue; may be repeated.")
        parser.add_argument("--exclude-queue", action="append", default=[], metavar="NAME", help="Serve all but this.")
        parser.add_argument("--concurrency", type=positive(int), default=settings.concurrency, help="Threads.")
        parser.add_argument(
            "--async-concurrency",
            type=positive(int),
            default=settings.async_concurrency,
            metavar="N",
            help="Async tasks that run at once, beside the threads.",
        )
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
        parser.add_argument("--max-jobs", type=positive(int), metavar="N", help=MAX_JOBS)
        parser.add_argument(
            "--max-memory-mb",
            type=positive(int),
            metavar="MB",
            help="Drain and stop above this much resident memory.",
        )
        parser.add_argument(
            "--processes",
            type=positive(int),
            metavar="N",
            help="Fork so many worker processes and replace each that ends; --concurrency and --max-* are for each.",
        )
        parser.add_argument(
            "--reload", action="store_true", help="Drain and start again when code changes; only with DEBUG."
        )
        parser.add_argument("--database", help="Alias of the database the jobs are in.")
        parser.add_argument("--quarantine", nargs=3, type=int, metavar=("WORKER", "PID", "PULSE"), help=SUPPRESS)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a program does. Unlike under `call_command`, the process ends with it, whatever tasks left behind."""
        run_to_the_end(partial(super().run_from_argv, argv))

    def handle(self, *args: Any, **options: Any) -> None:
        """Run one worker process, or supervise many; exit with its status."""
        leaves_level_open = show_on_stderr(options["verbosity"], djangos=DJANGOS_LOGGER)
        options["announces_start"] = leaves_level_open and options["verbosity"] > 0
        _refuse_nonsense(options)
        worker_options = _options(options)
        if options["quarantine"]:
            status = _run_quarantine(worker_options, *options["quarantine"])
        else:
            status = self._run_workers(worker_options, options)
        if status == Exit.RELOAD:
            start_anew()
        if status != Exit.DONE:
            sys.exit(status)

    def _run_workers(self, worker_options: Options, options: dict[str, Any]) -> int:
        if not options["burst"] and not options["reload"]:
            worker_options = self._with_quarantine(worker_options, verbosity=options["verbosity"])
        if options["processes"]:
            return _run_many(worker_options, options["processes"])
        return _run_one(worker_options, reload=options["reload"])

    def _with_quarantine(self, options: Options, *, verbosity: int) -> Options:
        """Only a process that Django's command line started can be started the same way once more."""
        if not getattr(self, "_called_from_command_line", False):
            return options
        command = command_for(options, name=type(self).__module__.rpartition(".")[2], verbosity=verbosity)
        if command is None:
            return options
        return replace(options, quarantine=command, lanes=tuple(lane for lane in Lane if lane is not Lane.ALONE))


def _refuse_nonsense(given: dict[str, Any]) -> None:
    if given["processes"] and not hasattr(os, "fork"):
        raise CommandError("--processes needs fork, which this system does not have: start the command several times.")
    if given["processes"] and given["reload"]:
        raise CommandError("--reload watches one process: it cannot be given beside --processes.")
    if given["reload"] and not django_settings.DEBUG:
        raise CommandError("--reload is for development: it needs settings.DEBUG.")


def _options(given: dict[str, Any]) -> Options:
    if given["queue"] and given["exclude_queue"]:
        raise CommandError("--queue names what to serve: --exclude-queue cannot be given beside it.")
    alias = chosen_alias(given)
    return Options(
        alias=alias,
        concurrency=given["concurrency"],
        lease_seconds=given["lease_seconds"],
        poll_seconds=given["poll_seconds"],
        queues=tuple(given["queue"]) if given["queue"] else None,
        excluded=tuple(given["exclude_queue"]),
        burst=given["burst"],
        max_jobs=given["max_jobs"],
        async_concurrency=given["async_concurrency"],
        max_memory_mb=given["max_memory_mb"],
        announces_start=given["announces_start"],
    )


def _run_many(options: Options, processes: int) -> int:
    """Supervise; in each child be a worker. Task modules are imported once, so that all run the same code."""
    registry.discover()
    _refuse_low_memory_limit(options)
    _run(options, partial(_rehearse, options))
    close_connections()
    if threads := other_threads():
        raise CommandError(
            f"These threads run already, and a fork would lose them: {', '.join(threads)}. Whatever starts them when"
            " settings, apps or task modules are imported must do so later; or start the command several times,"
            " without --processes."
        )
    inbox = Inbox()
    patience = Patience(deaf_seconds=max(LEAST_DEAF_SECONDS, options.lease_seconds))
    end = supervise(processes, burst=options.burst, on_stop=lambda: inbox.put(Signal.STOP), patience=patience)
    if isinstance(end, WorkerEnd):
        try:
            return _run_slot(options, inbox, slot=end.slot)
        finally:
            end.say_stopped()
    if end == Exit.CHILDREN_DIE:
        raise CommandError(
            "All worker processes died soon after their start, again and again. The log says how each of them ended.",
            returncode=end,
        )
    return end


def _rehearse(options: Options) -> int:
    """Refuse at once what every process would be refused. A server that is away may be back for the processes."""
    rehearse(options)
    return Exit.DONE


def _run_slot(options: Options, inbox: Inbox, *, slot: int) -> int:
    """Run one of the supervised workers. The first keeps the quarantine of all, to bound memory and connections."""
    if slot != 1:
        options = replace(options, quarantine=None)
    return _run(options, partial(run_worker, options, inbox, supervised=True))


def _run_quarantine(options: Options, worker_id: int, pid: int, pulse: int) -> int:
    """Run jobs that have lost a lease until none is due, or until the worker that started this process is gone."""
    options = replace(options, burst=True, lanes=(Lane.ALONE,), parent_id=worker_id, announces_start=False)
    inbox = Inbox()
    ParentWatch(pid, pulse=PulseWriter(pulse), on_gone=lambda: inbox.put(Signal.STOP)).start()
    return _run(options, partial(run_worker, options, inbox, supervised=True))


def _run_one(options: Options, *, reload: bool) -> int:
    _refuse_low_memory_limit(options)
    work = partial(run_worker, options)
    return _run(options, partial(run_reloading, work) if reload else work)


def _refuse_low_memory_limit(options: Options) -> None:
    """A worker that is over its limit from the start would be replaced for ever."""
    resident = resident_mb()
    if options.max_memory_mb is not None and resident >= options.max_memory_mb:
        raise CommandError(f"--max-memory-mb is {options.max_memory_mb}, and {resident:.0f} are used before any job.")


def _run(options: Options, work: Callable[[], int]) -> int:
    try:
        return work()
    except psycopg.Error as error:
        raise CommandError(why_no_start(options.alias, error), returncode=Exit.NO_START) from error
