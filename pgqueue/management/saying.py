"""What every command of the queue has: one sentence for what keeps it from its work."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ..registry import TaskModuleError


class QueueCommand(BaseCommand):
    """Tells in one sentence what keeps a command from its work; `--traceback` shows where it happened."""

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command."""
        try:
            return super().execute(*args, **options)
        except TaskModuleError as error:
            raise CommandError(str(error)) from error
