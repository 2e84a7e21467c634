"""`manage.py pgqueue_act`: the operator verbs for a shell; every call leaves an audit row."""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...exceptions import PGQueueError, shown
from ...json_input import read_json
from ...operations import Action, Actor, act
from ...states import Outcome
from ...verb_params import LONGEST_PAUSE_SECONDS
from ...verbs import OVERRULE, VERBS

NOT_DONE = 3
"""Exit status when nothing was done because the target did not allow it, or had changed."""
REQUESTED = 4
"""Exit status when nothing is done before a second person approves it."""

PARAMS = (
    *("for_seconds", "max_running", "rate_per_second", "burst", "weight"),
    *("delay_seconds", "priority", "queue"),
    *("effect", "remote_reference", "evidence", "result", "to", OVERRULE),
    *("new_args", "new_kwargs"),
)


class Command(BaseCommand):
    """Arguments, then one call."""

    help = (
        "Act on a job, a queue, a limit or a worker. Exit status 0: applied, or applied before; 3: nothing was done; "
        "4: it waits for a second person's approval."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Let `--version` be the target's: every command has one of Django's own, and two are an error."""
        return super().create_parser(prog_name, subcommand, conflict_handler="resolve", **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("verb", choices=sorted(VERBS))
        parser.add_argument(
            "target", help="A job's or a worker's id, a queue's name, or kind and name of a limit: tenant:acme."
        )
        parser.add_argument(
            "--version",
            dest="seen",
            type=int,
            required=True,
            help="The version you saw: if it changed, nothing is done.",
        )
        parser.add_argument("--reason", default="", help="Why; most verbs need one.")
        parser.add_argument("--ticket", default="")
        parser.add_argument("--key", help="Idempotency key: the same call again is told so, and not done twice.")
        parser.add_argument("--actor", help="Name for the audit log; by default that of the system user.")
        parser.add_argument(
            "--for-seconds", type=_seconds, help="With pause_queue, pause_jobs, snooze: over after this time."
        )
        parser.add_argument("--delay-seconds", type=_seconds, help="With requeue, reschedule: due after this time.")
        parser.add_argument("--priority", type=int, help="With reprioritise: from -100 to 100; higher is taken first.")
        parser.add_argument("--queue", help="With move_queue: where the job goes.")
        parser.add_argument("--effect", help="With a verdict: the name of the effect that it is about.")
        parser.add_argument(
            "--remote-reference", help="With happened, happened_finish, compensate: the remote system's name of it."
        )
        parser.add_argument("--evidence", help="With a verdict: how you know.")
        parser.add_argument(
            "--against-evidence",
            action="store_const",
            const=True,
            help="With did_not_happen, give_up_unknown: you have read a lost worker's late answer, and overrule it.",
        )
        parser.add_argument("--result", type=_json, help="With happened: what the call would have returned, as JSON.")
        parser.add_argument("--to", help="With hand_over: who looks after the job from now on.")
        parser.add_argument("--new-args", type=_json, help="With clone: other positional arguments, as a JSON list.")
        parser.add_argument("--new-kwargs", type=_json, help="With clone: other named arguments, as a JSON object.")
        parser.add_argument("--max-running", type=int, help="With set_limit; without it, any number may run.")
        parser.add_argument("--rate-per-second", type=float, help="With set_rate; without it, any number may start.")
        parser.add_argument("--burst", type=int, help="With set_rate: most starts at once after a rest; by default 1.")
        parser.add_argument("--weight", type=int, help="With set_weight: jobs in a tenant's turn.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Apply the verb and say what came of it."""
        try:
            action = act(
                options["verb"],
                options["target"],
                version_seen=options["seen"],
                actor=Actor(id=None, name=options["actor"] or _user()),
                reason=options["reason"],
                ticket=options["ticket"],
                params={name: options[name] for name in PARAMS if options[name] is not None},
                idempotency_key=options["key"],
            )
        except (PGQueueError, ValueError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(_told(action))
        if action.request_id is not None:
            raise CommandError("Nothing is done before somebody else approves it.", returncode=REQUESTED)
        if action.outcome not in (Outcome.APPLIED, Outcome.REPLAYED):
            raise CommandError("Nothing was done.", returncode=NOT_DONE)


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not JSON that can be used: {error}") from error


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= LONGEST_PAUSE_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not a time greater than zero, in seconds")
    return seconds


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError) as error:  # A container's user id need not have a name.
        raise CommandError("Nobody knows who you are: say it with --actor.") from error


def _told(action: Action) -> str:
    parts = [f"outcome={action.outcome}", f"audit={action.audit_id}"]
    if action.version_found is not None:
        parts.append(f"found={action.state_found} version={action.version_found}")
    if action.version_after is not None:
        parts.append(f"now={action.state_after} version={action.version_after}")
    if action.new_job_id is not None:
        parts.append(f"new_job={action.new_job_id}")
    if action.request_id is not None:
        parts.append(f"request={action.request_id}")
    if action.why is not None:
        parts.append(f"why={action.why!r}")
    if action.replay is not None:
        parts.append(f"applied_at={action.replay.created_at:%Y-%m-%dT%H:%M:%S%z}")
    return " ".join(parts)
