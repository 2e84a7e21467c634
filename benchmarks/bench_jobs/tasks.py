"""Tasks of an application that is measured: as a user writes them."""

from django.db import connection

import pgqueue

try:
    from django.tasks import task
except ImportError:  # Django 5.2 has the backport.
    from django_tasks import task

try:
    from benchlib import hit
except ImportError:  # Outside the harness nothing counts the runs.

    def hit() -> None:
        """Do nothing."""


@task
def noop() -> None:
    """Count one run."""
    hit()


@pgqueue.task
def touch() -> None:
    """Count one run that uses the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    hit()


@pgqueue.task(recovery="transactional")
def committed() -> None:
    """Count one run that is committed alone."""
    hit()
