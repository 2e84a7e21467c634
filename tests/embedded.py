"""A pytest plugin: gives the run a PostgreSQL before Django's settings are read.

No conftest can do that, since pytest-django reads the settings before pytest reads the first conftest. With
xdist the controller does it, and the workers inherit the environment.
"""

import functools
import os
import re
from collections.abc import Generator

import psycopg
import pytest
from psycopg import sql

from demo_project.postgres import PostgresError, start


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    if not os.environ.get("DATABASE_URL"):
        try:
            server = start("tests", fsync=False)
        except PostgresError as error:
            raise pytest.UsageError(str(error)) from error
        early_config.add_cleanup(server.stop)
        os.environ["DATABASE_URL"] = server.url
        early_config.add_cleanup(functools.partial(os.environ.__delitem__, "DATABASE_URL"))
    if "PGQUEUE_TEST_RUN" not in os.environ:
        os.environ["PGQUEUE_TEST_RUN"] = str(os.getpid())
        early_config.add_cleanup(functools.partial(os.environ.__delitem__, "PGQUEUE_TEST_RUN"))
        _drop_databases_of_killed_runs(os.environ["DATABASE_URL"])
    return (yield)


def _drop_databases_of_killed_runs(url: str) -> None:
    """Drop test databases whose run is no more, on a server of this machine: elsewhere pids mean nothing."""
    if "?host=/" not in url:
        return
    with psycopg.connect(url, autocommit=True) as connection:
        for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall():
            run = re.fullmatch(r"test_pgqueue_(\d+)(_gw\d+)?", name)
            if run and not _is_alive(int(run[1])):
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
                connection.execute(drop)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
