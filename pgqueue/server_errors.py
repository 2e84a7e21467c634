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
EVERYBODYS_CLASSES = ("08", "25", "40", "53", "57", "58")
"""Connection, state of the transaction (read-only is one), rollback, resources, operator's intervention, system."""
EVERYBODYS_CODES = ("0A000", "55P03")
"""A cached plan whose result type changed, which a new connection cures; a lock that is not to be had."""
CONNECTION_CODES = ("08", "28", "3D", "53300", "57P")
"""Connection, authorization, no such database, too many connections, a server that starts or stops."""
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


def is_everybodys(error: BaseException) -> bool:
    """Return whether any other statement would fail alike: the connection is lost, or the server serves nobody."""
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is None:
        return not is_of_the_value(error)
    return sqlstate[:2] in EVERYBODYS_CLASSES or sqlstate in EVERYBODYS_CODES


def is_read_only(error: BaseException) -> bool:
    """Return whether a write met a standby, or a read-only session."""
    return getattr(error, "sqlstate", None) == "25006"


def is_of_a_connection(error: BaseException) -> bool:
    """Return whether there is no connection to the server, or no longer: nothing was said of any statement."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(CONNECTION_CODES)
