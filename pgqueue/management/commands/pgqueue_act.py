"""`manage.py pgqueue_act`: the operator verbs for a shell; every call leaves an audit row."""

from __future__ import annotations

import argparse
import difflib
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...bounds import is_name
from ...exceptions import PGQueueError, shown
from ...json_input import read_json
from ...known_names import why_unknown
from ...operations import Action, Actor, act
from ...protocol.connecting import job_alias
from ...states import LIMIT_KINDS, Outcome
from ...verb_params import LONGEST_PAUSE_SECONDS
from ...verbs import OVERRULE, VERBS
from ..saying import QueueCommand, add_format, as_json, system_user

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


class Command(QueueCommand):
    """Arguments, then one call."""

    help = (
        "Act on a job, a queue, a limit or a worker. Exit status 0: applied, or applied before; 3: nothing was done; "
        "4: it waits for a second person's approval."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("verb", type=_verb, help=f"One of {', '.join(sorted(VERBS))}.")
        parser.add_argument(
            "target", help="A job's or a worker's id, a queue's name, or kind and name of a limit: tenant:acme."
        )
        parser.add_argument(
            "--seen",
            type=int,
            required=True,
            metavar="VERSION",
            help="The version you saw: if it changed, nothing is done.",
        )
        add_format(parser)
        parser.add_argument("--reason", default="", help="Why; most verbs need one.")
        parser.add_argument("--ticket", default="", help="Number of a ticket, for the audit log.")
        parser.add_argument("--key", help="Idempotency key: the same call again is told so, and not done twice.")
        parser.add_argument(
            "--new-name",
            action="store_true",
            help="The queue, tenant, task or resource is right, although no task and no job has it yet.",
        )
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
        if not options["new_name"]:
            _refuse_unknown(options["verb"], options["target"], options["queue"])
        try:
            action = act(
                options["verb"],
                options["target"],
                version_seen=options["seen"],
                actor=Actor(id=None, name=options["actor"] or system_user()),
                reason=options["reason"],
                ticket=options["ticket"],
                params={name: options[name] for name in PARAMS if options[name] is not None},
                idempotency_key=options["key"],
            )
        except (PGQueueError, ValueError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(as_json(_facts(action)) if options["format"] == "json" else _told(action))
        if action.request_id is not None:
            raise CommandError("Nothing is done before somebody else approves it.", returncode=REQUESTED)
        if action.outcome not in (Outcome.APPLIED, Outcome.REPLAYED):
            raise CommandError(_why_nothing(action, options["seen"]), returncode=NOT_DONE)


def _refuse_unknown(verb: str, target: str, new_queue: str | None) -> None:
    """Raise `CommandError` for a name that nothing has: a pause of it would be applied, and stop nothing."""
    kind, name = VERBS[verb].kind, target
    if kind == "limit":
        kind, _, name = target.partition(":")
    elif new_queue is not None:
        kind, name = "queue", new_queue
    if kind not in LIMIT_KINDS or not is_name(name):
        return
    why = why_unknown(job_alias(), kind, name)
    if why is not None:
        raise CommandError(f"{why} Nothing was done. If the name is right, add --new-name.")


def _why_nothing(action: Action, seen: int) -> str:
    if action.outcome is not Outcome.CHANGED:
        return "Nothing was done."
    return (
        f"Nothing was done: it changed since you looked. You gave version {seen}; it is version {action.version_found}"
        f" now, and {action.state_found}. Look at it again, and repeat the command with --seen {action.version_found}."
    )


def _verb(text: str) -> str:
    if text in VERBS:
        return text
    near = difflib.get_close_matches(text, VERBS, n=1)
    raise argparse.ArgumentTypeError(
        f"there is no verb {text!r}." + (f" Did you mean {near[0]!r}?" if near else f" Use one of {', '.join(VERBS)}.")
    )


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not JSON that can be used: {error}") from error


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < seconds <= LONGEST_PAUSE_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text} must be a time greater than zero, and at most {LONGEST_PAUSE_SECONDS} seconds"
        )
    return seconds


def _facts(action: Action) -> dict[str, Any]:
    """Return what `_told` tells, for programs."""
    return {
        "outcome": str(action.outcome),
        "audit": action.audit_id,
        "state_found": action.state_found,
        "version_found": action.version_found,
        "state_after": action.state_after,
        "version_after": action.version_after,
        "new_job": action.new_job_id,
        "request": action.request_id,
        "why": action.why,
        "applied_at": None if action.replay is None else action.replay.created_at.isoformat(),
    }


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
