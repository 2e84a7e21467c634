"""What every command of the queue has: one sentence for what keeps it from its work, and lines for programs."""

from __future__ import annotations

import getpass
import json
from argparse import ArgumentParser
from typing import Any, NoReturn

import psycopg
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error as DjangoError
from django.db import connections

from ..exceptions import SettingsError
from ..protocol.connecting import job_alias
from ..protocol.refusing import why_not_done
from ..registry import TaskModuleError

UNAVAILABLE = 69
"""Exit status when the database cannot be reached, lacks the tables, or refuses. The number is that of sysexits.h."""
USAGE = 2


class QueueCommand(BaseCommand):
    """Tells in one sentence what keeps a command from its work; `--traceback` shows where it happened."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Let errors of usage begin with the error."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        if not parser.called_from_command_line:
            return parser

        def error(message: str) -> NoReturn:
            # The usage of a command with many options takes the screen, and what is wrong would stand below it.
            parser.exit(USAGE, f"{parser.prog}: {message}\nTry: {parser.prog} --help\n")

        parser.error = error  # type: ignore[method-assign]
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command."""
        try:
            return super().execute(*args, **options)
        except (SettingsError, TaskModuleError) as error:
            raise CommandError(str(error)) from error
        except (DjangoError, psycopg.Error) as error:
            raise _unavailable(options.get("database") or job_alias(), error) from error


def _unavailable(alias: str, error: Exception) -> CommandError:
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    if isinstance(cause, psycopg.Error):
        return CommandError(why_not_done(alias, cause), returncode=UNAVAILABLE)
    return CommandError(f"Database {alias!r} cannot be used: {error}", returncode=UNAVAILABLE)


def add_format(parser: ArgumentParser) -> None:
    """Declare `--format`."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one JSON object per line, for programs."
    )


def as_json(line: dict[str, Any]) -> str:
    """Return a line for programs, without what has no value."""
    return json.dumps({name: value for name, value in line.items() if value is not None}, default=str)


def chosen_alias(options: dict[str, Any]) -> str:
    """Return the alias of `--database`, else that of the jobs. Raise `CommandError` for one that does not exist."""
    alias = options.get("database") or job_alias()
    if alias not in connections:
        raise CommandError(f"There is no database {alias!r}; settings.DATABASES has: {', '.join(connections)}.")
    if connections[alias].vendor != "postgresql":
        raise CommandError(f"Database {alias!r} is {connections[alias].display_name}: pgqueue needs PostgreSQL.")
    return str(alias)


def system_user() -> str:
    """Return who runs the command. Raise `CommandError` where the user id has no name, as in a container."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError) as error:
        raise CommandError("Your user id has no name here: give one with --actor.") from error
