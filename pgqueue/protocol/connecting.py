"""Connections of the queue's own, made from Django's settings, and the transactions on them."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import psycopg
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.utils.module_loading import import_string
from psycopg import sql
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import RowFactory, tuple_row

from .. import conf
from ..foreign import told
from ..logs import get_logger
from ..registry import NOT_INSTALLED
from ..sql import load
from .through_django import DjangoConnection

logger = get_logger(__name__)

_KEEPALIVE = {
    "connect_timeout": 5,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}
"""A cut network is noticed within about five seconds; libpq's own default hangs for minutes."""

PREPARE_THRESHOLD = 2
"""Executions after which a statement is prepared: planning a claim takes longer than claiming one job."""

ANSWER_SECONDS = 15.0
"""Three times the longest statement timeout: a server that is only slow says so itself."""

_DJANGO_ONLY = ("context", "cursor_factory", "pool", "server_side_binding", "isolation_level", "assume_role")


def job_alias() -> str:
    """Return the alias of the database that jobs are written to: the setting's, else the routers'."""
    try:
        return conf.current().database or router.db_for_write(apps.get_model("pgqueue", "Job"))
    except LookupError as error:
        raise ImproperlyConfigured(NOT_INSTALLED) from error


class BoundedConnection(psycopg.Connection[Any]):
    """Gives up on a server that does not answer: the driver itself would wait for ever.

    Server-side timeouts do not help where the server is frozen, a pooler hangs, or COMMIT waits for a standby.
    """

    answer_seconds: float = ANSWER_SECONDS
    is_direct = False
    """Whether nothing stands between us and the server, so that what is set for the session stays set."""
    guarded_seconds: float | None = None
    """Time in which every statement is bounded, with its plan pinned, also outside a guarded transaction; or None."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Run one exchange with the server. Raise `psycopg.OperationalError` and close when it takes too long."""
        if args or kwargs:
            # `notifies` waits for news, not for an answer, and says for how long.
            return super().wait(gen, *args, **kwargs)
        return super().wait(self._bounded(gen))

    def _bounded(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass on what an exchange waits for. The driver looks in ten times a second to say that nothing came."""
        deadline = time.monotonic() + self.answer_seconds
        try:
            awaited = next(gen)
            while True:
                came = yield awaited
                if not came and time.monotonic() > deadline:
                    raise self._gave_up()
                awaited = gen.send(came)
        except StopIteration as answer:
            return answer.value

    def _gave_up(self) -> psycopg.OperationalError:
        self.close()
        return psycopg.OperationalError(f"the server did not answer within {self.answer_seconds:g} seconds")


def connect(
    alias: str, *, role: str, answer_seconds: float = ANSWER_SECONDS, timeout_seconds: float | None = None
) -> BoundedConnection:
    """Open an autocommit connection to the database of `alias`, apart from Django's.

    `role` shows in `application_name`. No answer is waited for longer than `answer_seconds`. Where that is shorter than
    usual, it also bounds the wait for the connection, down to the driver's two seconds. Read Committed whatever
    the database's default: the protocol re-reads rows under their lock. Where nothing stands between us and the server
    statements are prepared, which fails behind a transaction pooler; and with `timeout_seconds` each is guarded
    as `transaction` does it, so that a statement can go by itself. `PGQUEUE["ON_CONNECT"]` is called last.
    Raise `psycopg.OperationalError` when the server is away, or when that function failed.
    """
    options = connections[alias].settings_dict.get("OPTIONS", {})
    params = connections[alias].get_connection_params()
    for name in _DJANGO_ONLY:
        params.pop(name, None)
    params = {**_KEEPALIVE, **params, "application_name": f"pgqueue {role}", "prepare_threshold": None}
    if answer_seconds < ANSWER_SECONDS:
        params["connect_timeout"] = _shorter(params["connect_timeout"], answer_seconds)
    connection = BoundedConnection.connect(**params, autocommit=True)
    connection.answer_seconds = answer_seconds
    try:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        if is_direct(connection):
            connection.is_direct = True
            connection.prepare_threshold = PREPARE_THRESHOLD
            connection.execute(load("default_to_read_committed"))
            if timeout_seconds is not None:
                _guard(connection, timeout_seconds, is_local=False)
                connection.guarded_seconds = timeout_seconds
        if options.get("assume_role"):
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(options["assume_role"])))
        _call_hook(connection, role)
    except BaseException:
        connection.close()
        raise
    return connection


def _call_hook(connection: BoundedConnection, role: str) -> None:
    """Let the project prepare the session. What goes wrong there is no job's fault: the caller connects again later."""
    path = conf.current().on_connect
    if path is None:
        return
    try:
        import_string(path)(connection, role)
    except Exception as error:
        logger.error("connection.refused role=%s %s", role, told(error))
        raise psycopg.OperationalError(f"PGQUEUE['ON_CONNECT'] raised {type(error).__name__}") from error
    if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        logger.error("connection.refused role=%s", role)
        raise psycopg.OperationalError("PGQUEUE['ON_CONNECT'] left a transaction open")


def _shorter(given: Any, seconds: float) -> int:
    """Return the connect timeout for a connection whose answers are waited for so long. Zero is no timeout."""
    bound = max(1, int(seconds))
    return min(bound, int(given)) if int(given) > 0 else bound


def _guard(connection: psycopg.Connection[Any], timeout_seconds: float, *, is_local: bool = True) -> None:
    if is_local and is_guarded(connection, timeout_seconds):
        return
    timeout_ms = str(int(timeout_seconds * 1000))
    connection.execute(load("guard_transaction"), {"timeout_ms": timeout_ms, "is_local": is_local})


def is_guarded(connection: psycopg.Connection[Any], timeout_seconds: float) -> bool:
    """Say whether every statement of this session is bounded by that time and has its plan pinned."""
    return isinstance(connection, BoundedConnection) and connection.guarded_seconds == timeout_seconds


def is_direct(connection: psycopg.Connection[Any]) -> bool:
    """Say whether we were told the server's own process id: a pooler tells one of its making, or none."""
    row = connection.execute(load("read_backend_pid")).fetchone()
    return row is not None and row[0] == connection.info.backend_pid


class QuickCursor(psycopg.RawCursor[Any]):
    """Takes rows in binary, and reads a statement once: the driver would look for parameters every time."""

    format = Format.BINARY

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Execute a statement of ours with a mapping of its parameters."""
        text, names = numbered(query)
        return super().execute(text, [params[name] for name in names], **options)


@lru_cache(maxsize=256)
def numbered(query: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement as the server wants it, with numbers for names, and the names in their order."""
    numbers: dict[str, int] = {}
    text = re.sub(r"%\((\w+)\)s", lambda match: f"${numbers.setdefault(match[1], len(numbers) + 1)}", query)
    return text.encode(), tuple(numbers)


def quick_cursor(
    connection: psycopg.Connection[Any] | DjangoConnection, *, row_factory: RowFactory[Any] = tuple_row
) -> QuickCursor:
    """Return a cursor for what is sent often; on a borrowed connection of Django's too."""
    if isinstance(connection, DjangoConnection):
        return cast(QuickCursor, connection.cursor(row_factory=row_factory))
    return QuickCursor(connection, row_factory=row_factory)


@contextmanager
def transaction(connection: psycopg.Connection[Any], *, timeout_seconds: float) -> Iterator[None]:
    """Run one short transaction whose statements are bounded in time and whose plans are pinned."""
    with connection.transaction():
        _guard(connection, timeout_seconds)
        yield


@contextmanager
def one_trip(connection: psycopg.Connection[Any], *, timeout_seconds: float, is_single: bool = False) -> Iterator[None]:
    """Run such a transaction in one round trip: all of it is sent before anything is answered.

    A single statement on a guarded connection is such a transaction by itself.

    Results are read from the cursors once the block has been left. When a statement fails, its error is raised then,
    and nothing is written: the server makes one transaction of what comes in one trip, with no need for BEGIN and
    COMMIT. Inside a transaction that is open already, on a connection of Django's, and behind a pooler, where nothing
    says how a transaction without BEGIN is isolated, the statements go one by one.
    """
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    is_direct = isinstance(connection, BoundedConnection) and connection.is_direct
    if not (is_idle and is_direct and psycopg.Pipeline.is_supported()):
        with transaction(connection, timeout_seconds=timeout_seconds):
            yield
        return
    if is_single and is_guarded(connection, timeout_seconds):
        yield
        return
    try:
        with connection.pipeline():
            _guard(connection, timeout_seconds)
            yield
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise
