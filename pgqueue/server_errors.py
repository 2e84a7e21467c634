"""What an error of the database means for the queue's own statements. Pure.

Either the value that was sent is at fault, and with it the job that it belongs to: the same value would be refused
again. Or the server is at fault: what was sent is kept, and sent again. Errors of a task's own statements are another
matter, see `failures`.

Source: PostgreSQL manual, appendix A. A class is the first two characters of a code.
"""

from __future__ import annotations

import psycopg

DATABASE_ERRORS = (psycopg.Error, OSError)
"""Whatever a statement of the queue's own can raise."""

VALUE_CLASSES = ("22", "54")
"""Data exceptions, and limits that a value exceeds."""
INTEGRITY_CLASS = "23"
CONNECTION_CODES = ("08", "28", "3D", "53300", "57P")
"""Connection, authorization, no such database, too many connections, a server that starts or stops."""
PASSING_CODES = ("08", "40", "53", "55P03", "57", "58")
"""Connection, rollback, resources, a lock that is not to be had, operator's intervention, system."""
MOST_IN_A_ROW = 3
LONGEST_REFUSAL_SECONDS = 1.0
"""A refusal that took longer was a wait for something: claims must not wait for further ones."""
OWN_NAMES = "pgqueue_"
"""How every table and constraint of the queue's own begins."""


def is_of_the_value(error: BaseException) -> bool:
    """Return whether a value was refused that would be refused again, so that its job is at fault."""
    if not isinstance(error, psycopg.Error):
        return False
    sqlstate = error.sqlstate
    if sqlstate is None:
        # The driver itself refused it, as it does a NUL character, and sent nothing.
        return isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
    if sqlstate[:2] == INTEGRITY_CLASS:
        # A constraint or a trigger of the site's own is no fault of the job.
        broken = error.diag.constraint_name or error.diag.table_name
        return (broken or "").startswith(OWN_NAMES)
    return sqlstate[:2] in VALUE_CLASSES


def is_for_all(in_a_row: int, *, took_seconds: float) -> bool:
    """Return whether the server is taken to refuse other rows too, by the refusals of single rows so far.

    No SQLSTATE says so: a trigger or a damaged page can refuse one row with any.
    """
    return in_a_row >= MOST_IN_A_ROW or took_seconds > LONGEST_REFUSAL_SECONDS


def is_read_only(error: BaseException) -> bool:
    """Return whether a write met a standby, or a read-only session."""
    return getattr(error, "sqlstate", None) == "25006"


def is_of_a_connection(error: BaseException) -> bool:
    """Return whether there is no connection to the server, or no longer: nothing was said of any statement."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(CONNECTION_CODES)


def may_pass(error: BaseException) -> bool:
    """Return whether the server is away, busy or locked, so that the same may be done a little later."""
    sqlstate = getattr(error, "sqlstate", None)
    return not is_of_the_value(error) if sqlstate is None else sqlstate.startswith(PASSING_CODES)
