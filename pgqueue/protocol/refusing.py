"""Tell why a database takes no writes, or lets no worker start."""

from __future__ import annotations

import psycopg
from django.db import connections

from ..server_errors import is_of_a_connection, is_read_only
from ..sql import load

ADVICE = (
    "Give workers, and whoever enqueues, the primary; with several hosts in HOST, set target_session_attrs to"
    " 'read-write' in OPTIONS."
)
NO_TABLE = "42P01"
OTHER_TABLES = ("42703", "42883")
"""A column or a function that does not exist, as before a migration."""
NO_PRIVILEGE = "42501"
TOO_SLOW = ("55P03", "57014")
"""A lock that is not to be had; a statement that was cancelled because its time was over."""


def why_read_only(alias: str) -> str | None:
    """Return why the server behind Django's connection takes no writes, in one sentence; None where it takes them."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("read_role_of_server"))
        is_standby, is_read_only_by_default = cursor.fetchone()
    if is_standby:
        return f"Database {alias!r} is a standby: jobs are neither enqueued nor run there."
    if is_read_only_by_default:
        return (
            f"Database {alias!r} is read-only (default_transaction_read_only): jobs are neither enqueued nor run there."
        )
    return None


def why_not_done(alias: str, error: psycopg.Error) -> str:
    """Return for people why a command did nothing, from the error of its statement, in one line."""
    said = " ".join(str(error.diag.message_primary or error).split())
    if (why := _why_unusable(alias, error, said)) is not None:
        return why
    if error.sqlstate == NO_PRIVILEGE:
        return f"This role lacks a privilege in database {alias!r}: {said}. The owner of it must grant it."
    code = error.sqlstate or "no SQLSTATE"
    return f"Database {alias!r} refused a statement ({type(error).__name__}, {code}): {said}"


def why_no_start(alias: str, error: psycopg.Error) -> str:
    """Return for people why a worker cannot start, from the error of its first statements, in one line."""
    # The message of a connection that cannot be made has several lines.
    said = " ".join(str(error.diag.message_primary or error).split())
    code = error.sqlstate or "no SQLSTATE"
    if (why := _why_unusable(alias, error, said)) is not None:
        return why
    if code == NO_PRIVILEGE:
        return f"The worker's role lacks a privilege in database {alias!r}: {said}. The owner of it must grant it."
    if code in TOO_SLOW:
        return (
            f"Database {alias!r} refused the start of a worker ({type(error).__name__}, {code}): {said}. Look for"
            " a lock on pgqueue_worker, and for a server that is overloaded."
        )
    return f"Database {alias!r} refused the start of a worker ({type(error).__name__}, {code}): {said}"


def _why_unusable(alias: str, error: psycopg.Error, said: str) -> str | None:
    """Return why nobody can use the queue there; None where the error does not say so."""
    if error.sqlstate == NO_TABLE:
        return f"The queue's tables are missing in database {alias!r}: run manage.py migrate."
    if error.sqlstate in OTHER_TABLES:
        return f"The queue's tables in database {alias!r} are of another version: run manage.py migrate ({said})."
    if is_read_only(error):
        return f"Database {alias!r} is a standby, or read-only. {ADVICE}"
    if is_of_a_connection(error):
        return f"Database {alias!r} cannot be reached: {said}"
    return None
