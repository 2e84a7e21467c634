"""Connections of the queue's own, made from Django's settings, and the transactions on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.apps import apps
from django.db import connections, router
from psycopg import sql

from .. import conf
from ..sql import load

_KEEPALIVE = {
    "connect_timeout": 5,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}
"""A cut network is noticed within about five seconds; libpq's own default hangs for minutes."""

_DJANGO_ONLY = ("context", "cursor_factory", "pool", "server_side_binding", "isolation_level", "assume_role")


def job_alias() -> str:
    """Return the alias of the database that jobs are written to: the setting's, else the routers'."""
    return conf.current().database or router.db_for_write(apps.get_model("pgqueue", "Job"))


def connect(alias: str, *, role: str) -> psycopg.Connection[Any]:
    """Open an autocommit connection to the database of `alias`, apart from Django's.

    `role` shows in `application_name`. Read Committed whatever the database's default: the protocol
    re-reads rows under their lock. No prepared statements: they fail behind a transaction pooler.
    Raise `psycopg.OperationalError` when the server is away.
    """
    options = connections[alias].settings_dict.get("OPTIONS", {})
    params = connections[alias].get_connection_params()
    for name in _DJANGO_ONLY:
        params.pop(name, None)
    params = {**_KEEPALIVE, **params, "application_name": f"pgqueue {role}", "prepare_threshold": None}
    connection = psycopg.connect(**params, autocommit=True)
    try:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        if options.get("assume_role"):
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(options["assume_role"])))
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: psycopg.Connection[Any], *, timeout_seconds: float) -> Iterator[None]:
    """Run one short transaction whose statements are bounded in time and whose plans are pinned."""
    with connection.transaction():
        connection.execute(load("guard_transaction"), {"timeout_ms": str(int(timeout_seconds * 1000))})
        yield
