"""That what is recorded beside the rates is recorded: shape only."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sitting import judge

pytestmark = pytest.mark.bench

HERE = Path(__file__).resolve().parent
SERVER = os.environ.get("DATABASE_URL", "")
HARNESS = """
import sys
class Contestant:
    opt = {"receiver": 1}
def hit(): pass
def main(contestant):
    {"bulk": contestant.open, "worker": contestant.prepare_worker}.get(sys.argv[1], int)()
    getattr(contestant, sys.argv[1])(*map(int, sys.argv[2:]))
"""


def ask(query: str, *, database: str = "postgres") -> Any:
    """Run one statement on a connection of its own; return the first value."""
    with psycopg.connect(SERVER, dbname=database, autocommit=True) as connection:
        cursor = connection.execute(query)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def until(holds: Callable[[], Any]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.01)


@pytest.fixture
def database() -> Iterator[str]:
    name = f"beside_{os.getpid()}"
    ask(f"CREATE DATABASE {name}")
    yield name
    ask(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def sampler() -> Iterator[subprocess.Popen[str]]:
    before = samples()
    command = [sys.executable, str(HERE / "beside.py"), "--every", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: samples() != before)
        yield process
        process.kill()


def samples() -> Any:
    """Return when the sampler began its latest sample."""
    return ask(
        "SELECT max(query_start) FROM pg_stat_activity WHERE application_name = 'beside' AND datname = 'postgres'"
    )


def see_two() -> None:
    """Wait for a sample that began after this call."""
    for _ in range(2):
        before = samples()
        until(lambda before=before: samples() != before)


def test_waits_and_growth_are_told_for_each_life_of_a_database(sampler: subprocess.Popen[str], database: str) -> None:
    ask("CREATE TABLE grown (id int); CREATE INDEX grown_id ON grown (id)", database=database)
    ask("INSERT INTO grown SELECT generate_series(1, 50000)", database=database)
    with psycopg.connect(SERVER, dbname=database, application_name="holder") as holder:
        holder.execute("LOCK TABLE grown IN SHARE MODE")
        waiter = threading.Thread(target=ask, args=["DELETE FROM grown WHERE id = 1"], kwargs={"database": database})
        waiter.start()
        waiting = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
        until(lambda: ask(waiting))
        see_two()
    waiter.join()
    sessions = f"SELECT sessions FROM pg_stat_database WHERE datname = '{database}'"
    until(lambda: ask(sessions) > 4)  # Ours were four, so the sampler was there.

    ask(f"DROP DATABASE {database}")  # Waits for nobody for long.
    ask(f"CREATE DATABASE {database}")
    ask("CREATE TABLE anew AS SELECT * FROM generate_series(1, 1000) AS id", database=database)
    until(lambda: ask(f"SELECT tup_inserted >= 1000 FROM pg_stat_database WHERE datname = '{database}'"))
    see_two()
    sampler.terminate()
    told, _ = sampler.communicate(timeout=60)
    print(told)

    assert sampler.returncode == 0
    first, second = [life for life in told.split("-- beside: ") if life.startswith(database)]
    assert "deadlocks: 0" in first
    [holding] = [line.split() for line in first.splitlines() if line.strip().startswith("holder")]
    assert (holding[1], holding[4]) == ("1", "1"), "at most once at a time, and once idle in transaction"
    [waits] = [line for line in first.splitlines() if "waiting for locks" in line]
    assert "relation" in waits
    [table] = [line.split() for line in first.splitlines() if line.split()[:1] == ["grown"]]
    assert float(table[1]) == 0 < float(table[2])
    [index] = [line.split() for line in first.splitlines() if line.split()[:1] == ["grown_id"]]
    assert float(index[2]) > 0
    assert "anew" in second
    assert "grown" not in second


def test_a_receiver_counts_each_job_of_a_heard_round(database: str, tmp_path: Path) -> None:
    """The contestant with the real worker, without the harness."""
    (tmp_path / "benchlib.py").write_text(HARNESS)
    server = conninfo_to_dict(SERVER)
    env = {
        **os.environ,
        **{f"PG{name.upper()}": str(server[name]) for name in ("host", "port", "user", "password") if name in server},
        "PGDATABASE": database,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE.parent)]),
        "PGQUEUE_HEARD": str(tmp_path / "heard.txt"),
    }
    env = {"PGPORT": "5432", "PGUSER": "postgres", **env}
    contestant = [sys.executable, str(HERE / "contestant.py")]
    subprocess.run([*contestant, "setup"], env=env, check=True)
    subprocess.run([*contestant, "bulk", "700"], env=env, check=True)
    with subprocess.Popen([*contestant, "worker"], env=env) as worker:
        done = "SELECT count(*) = 700 FROM pgqueue_job WHERE state = 'succeeded'"
        until(lambda: ask(done, database=database) or worker.poll() is not None)
        worker.terminate()
    assert (tmp_path / "heard.txt").read_text() == "700 runs of the receiver, 700 jobs\n"


@pytest.mark.parametrize(
    ("counts", "capped", "wrong"),
    [
        ([(20, 20), (9, 9), (11, 11)], False, False),
        ([(19, 20), (9, 9), (11, 11)], False, True),
        ([(20, 20), (9, 9), (10, 10)], False, True),
        ([(20, 20), (20, 20)], False, True),
        ([], False, True),
        ([(20, 20), (9, 9), (10, 10)], True, False),
    ],
)
def test_a_heard_round_is_wrong_unless_each_job_was_heard(
    counts: list[tuple[int, int]], capped: bool, wrong: bool
) -> None:
    text = "".join(f"{runs} runs of the receiver, {jobs} jobs\n" for runs, jobs in counts)
    rounds = {"drain1": [{"n": 20, "capped": False}], "drain2": [{"n": 20, "capped": capped}]}
    assert judge(text, rounds).startswith("WRONG") == wrong
