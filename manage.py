#!/usr/bin/env python
"""Django's command line for the demo site."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
    # Django answers some commands without settings and would show a traceback for the others.
    if not os.environ.get("DATABASE_URL"):
        sys.exit(
            "DATABASE_URL is not set. Run `make demo`, or this command with an embedded PostgreSQL:\n"
            f"  python -m demo_project.postgres --run python {' '.join(sys.argv)}\n"
            "or point DATABASE_URL at a server of yours: postgresql://user:password@host/database"
        )
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"manage.py: {error}")


if __name__ == "__main__":
    main()
