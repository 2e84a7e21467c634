"""Runs of minutes: many finished rows, a held snapshot, commits of single jobs, a million jobs through one worker.

    PGHOST=... PGPORT=... PGUSER=... python benchmarks/long_runs.py transactional growth future snapshot memory

Makes the databases `pgqueue_long` and `pgqueue_bare` anew. The worker is the real command in a process of its own.
Every figure has its baseline in the same run; what is beside many rows takes turns with what is not, as a shared
machine is faster at one time than at another.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

LONG, BARE = "pgqueue_long", "pgqueue_bare"
os.environ["PGDATABASE"] = os.environ.get("PGQUEUE_LONG_RUNS", LONG)
os.environ.pop("DATABASE_URL", None)
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
harness = types.ModuleType("benchlib")
harness.Contestant = object  # type: ignore[attr-defined]
harness.main = harness.hit = lambda *_: None  # type: ignore[attr-defined]
sys.modules["benchlib"] = harness

import psycopg  # noqa: E402
from contestant import Ours, configure  # noqa: E402

UNFINISHED = "SELECT EXISTS (SELECT FROM pgqueue_job WHERE state IN ('pending', 'retrying', 'running'))"


def say(*words: object) -> None:
    """Print a figure at once."""
    print(*words, flush=True)


def raw(sql: str, params: Any = None, *, database: str | None = None) -> Any:
    """Run one statement."""
    with psycopg.connect(dbname=database or os.environ["PGDATABASE"], autocommit=True) as connection:
        cursor = connection.execute(sql, params)
        return cursor.fetchall() if cursor.description else None


def enqueue(count: int, task: Any) -> None:
    """Enqueue many, 1,000 a call."""
    import pgqueue

    for start in range(0, count, 1000):
        pgqueue.enqueue_many([task.bind()] * min(1000, count - start))


def work(*options: str) -> subprocess.Popen[bytes]:
    """Start a worker."""
    return subprocess.Popen([sys.executable, __file__, "worker", *options])


def drain(count: int, task: Any, *options: str) -> float:
    """Return jobs a second, from the start of the first to the end of the last, by the rows."""
    enqueue(count, task)
    raw("VACUUM ANALYZE")
    worker = work("--burst", *options)
    worker.wait()
    query = (
        "SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM"
        " (SELECT started_at, finished_at FROM pgqueue_job ORDER BY id DESC LIMIT %s) AS latest"
    )
    return count / float(raw(query, [count])[0][0])


def transactional() -> None:
    """One commit for each job, on four threads, against four connections with nothing else."""
    from bench_jobs.tasks import committed

    alone, ours = [], []
    for _ in range(3):
        ours.append(drain(4_000, committed, "--concurrency", "4"))
        enqueue(4_000, committed)
        alone.append(_commit_alone(4_000))
    say(f"transactional: {statistics.median(ours):.0f}/s, raw {statistics.median(alone):.0f}/s", ours, alone)


def _commit_alone(count: int) -> float:
    share, ends = count // 4, []
    began = time.monotonic()
    threads = [subprocess.Popen([sys.executable, __file__, "alone", str(share)]) for _ in range(4)]
    ends = [thread.wait() for thread in threads]
    assert ends == [0] * 4
    seconds = max(float(line) for line in Path("/dev/shm/pgqueue-alone").read_text().splitlines())
    Path("/dev/shm/pgqueue-alone").unlink()
    assert seconds < time.monotonic() - began
    return count / seconds


def alone(share: int) -> None:
    """Claim a share at once, and complete its jobs with a commit for each."""
    from bench_jobs.tasks import committed

    from pgqueue.protocol.claiming import Claimant, Turn
    from pgqueue.protocol.connecting import connect, quick_cursor
    from pgqueue.protocol.pipelining import Wish, settle_and_claim
    from pgqueue.sql import load

    connection = connect("default", role="bench")
    claimant = Claimant(worker_id=os.getpid(), tasks=(committed.module_path,), lease_seconds=600.0)
    wishes = [Wish(claimant, share, Turn())]
    _, [haul] = settle_and_claim(connection, worker_id=os.getpid(), endings=[], wishes=wishes)
    cursor, began = quick_cursor(connection), time.monotonic()
    for lease in haul.read():
        given = {"worker_id": os.getpid(), "ids": [lease.id], "fences": [lease.fence], "run_seconds": [0.0]}
        # A claim that came upon the row as it was claimed keeps its lock until it commits: then it is left out.
        while cursor.execute(load("complete"), {**given, "results": None}).rowcount == 0:
            assert time.monotonic() < began + 60
    with Path("/dev/shm/pgqueue-alone").open("a") as told:
        told.write(f"{time.monotonic() - began}\n")


def growth() -> None:
    """Drain beside a million and five million finished rows, and beside none."""
    raw("TRUNCATE pgqueue_job, pgqueue_jobpayload")
    for finished in (1_000_000, 5_000_000):
        missing = finished - raw("SELECT count(*) FROM pgqueue_job")[0][0]
        _beside(f"{finished:,} finished rows", Ours.retained_sql, missing)


def future() -> None:
    """Drain in front of five million rows of a higher priority that are due in a day, and without them."""
    raw("TRUNCATE pgqueue_job, pgqueue_jobpayload")
    _beside("5,000,000 future rows", ADD_FUTURE, 5_000_000)


def _beside(what: str, fill: str, count: int) -> None:
    raw(fill, {"n": count})
    raw("VACUUM ANALYZE pgqueue_job")
    raw("CHECKPOINT")  # What filling wrote is not part of the drains.
    rates: dict[str, list[float]] = {LONG: [], BARE: []}
    for database in (BARE, LONG, LONG, BARE) * 5:
        if database == BARE:
            raw("TRUNCATE pgqueue_job", database=BARE)
        rates[database].append(float(_run_in(database, "drained")))
    beside, alone = (statistics.median(rates[name]) for name in (LONG, BARE))
    [size] = raw("SELECT pg_relation_size('pgqueue_job') >> 20, pg_indexes_size('pgqueue_job') >> 20")
    each = statistics.median(one / other for one, other in zip(rates[LONG], rates[BARE], strict=True))
    say(f"beside {what}: {beside:.0f}/s, alone {alone:.0f}/s, {beside / alone:.2f}; in turn {each:.2f}", size, rates)


def _run_in(database: str, what: str) -> str:
    command = [sys.executable, __file__, what]
    ran = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PGQUEUE_LONG_RUNS": database}
    )
    return ran.stdout


ADD_FUTURE = """
    INSERT INTO pgqueue_job (
        created_at, run_at, max_attempts, queue, task, recovery, stage, state, priority, lane, attempts, lease_losses,
        unknown_effects, fence, version
    )
    SELECT
        now(), now() + interval '1 day', 8, 'default', 'bench_jobs.tasks.noop', 'undeclared', 'not_called', 'pending',
        50, 0, 0, 0, 0, 0, 1
    FROM generate_series(1, %(n)s::int)
"""


def snapshot(seconds: int = 300, rate: int = 2_000) -> None:
    """2,000 jobs a second while another session holds a snapshot: how long claims take, first and last."""
    from bench_jobs.tasks import noop

    raw("TRUNCATE pgqueue_job, pgqueue_jobpayload")
    with psycopg.connect(dbname="pgqueue_long") as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pgqueue_job")
        worker = work("--log-claims")
        began = time.monotonic()
        for tick in range(seconds * 10):
            enqueue(rate // 10, noop)
            time.sleep(max(0.0, began + (tick + 1) / 10 - time.monotonic()))
            if tick % 300 == 299:
                waiting = raw("SELECT count(*) FROM pgqueue_job WHERE state = 'pending'")[0][0]
                say(f"snapshot: {time.monotonic() - began:.0f} s, {waiting} waiting")
        worker.terminate()
        worker.wait()
        say("snapshot: expired and running", *(_timed(query) for query in STANDING))


STANDING = (
    "SELECT count(*) FROM pgqueue_job WHERE state = 'running' AND lease_until <= now()",
    "SELECT queue, count(*) FROM pgqueue_job WHERE state = 'running' GROUP BY queue",
)


def _timed(query: str) -> str:
    began = time.monotonic()
    raw(query)
    return f"{(time.monotonic() - began) * 1000:.1f} ms"


def memory(jobs: int = 1_000_000) -> None:
    """A million jobs through one worker."""
    from bench_jobs.tasks import noop

    raw("TRUNCATE pgqueue_job, pgqueue_jobpayload")
    worker = work()
    done = threading.Event()
    threading.Thread(target=_watch_memory, args=(worker.pid, done), daemon=True).start()
    for _ in range(jobs // 20_000):
        enqueue(20_000, noop)
        while raw("SELECT count(*) > 40000 FROM pgqueue_job WHERE state = 'pending'")[0][0]:
            time.sleep(0.2)
    while raw(UNFINISHED)[0][0]:
        time.sleep(0.5)
    done.set()
    ended = raw("SELECT state, count(*) FROM pgqueue_job GROUP BY 1")
    say("memory: at the end", _resident(worker.pid), "MB", ended)
    worker.terminate()
    worker.wait()


def _watch_memory(pid: int, done: threading.Event) -> None:
    while not done.wait(15):
        say("memory:", _resident(pid), "MB")


def _resident(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return round(int(line.split()[1]) / 1024, 1)


def _time_claims() -> None:
    """Print the times of trips with claims, and of looks: the median and the 95th of 100 for each 30 seconds."""
    from pgqueue.worker import dispatcher, lookout

    times: dict[tuple[int, str], list[float]] = {}
    began = time.monotonic()

    def timed(name: str, really: Any) -> Any:
        def run(*given: Any, **options: Any) -> Any:
            start = time.monotonic()
            answer = really(*given, **options)
            if options.get("wishes", True):
                part = int((start - began) // 30)
                times.setdefault((part, name), []).append((time.monotonic() - start) * 1000)
            return answer

        return run

    dispatcher.settle_and_claim = timed("trips", dispatcher.settle_and_claim)
    lookout.look = timed("looks", lookout.look)
    import atexit

    atexit.register(_say_times, times)


def _say_times(times: dict[tuple[int, str], list[float]]) -> None:
    for part in sorted({part for part, _ in times}):
        every = [ms for (of, _), took in times.items() if of == part for ms in took]
        parts = ", ".join(
            f"{len(took)} {name} p50 {statistics.median(took):.1f} p95 {_late(took):.1f} ms"
            for (of, name), took in sorted(times.items(), reverse=True)
            if of == part
        )
        say(f"claims: {part * 30} s, {parts}; together p95 {_late(every):.1f} ms")


def _late(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.95)]


def main() -> None:
    """Run what the arguments name."""
    configure({})
    from django.core.management import call_command

    if sys.argv[1] == "worker":
        options = [option for option in sys.argv[2:] if option != "--log-claims"]
        if len(options) < len(sys.argv[2:]):
            _time_claims()
        call_command("runworker", *options, verbosity=0)
        return
    if sys.argv[1] == "alone":
        alone(int(sys.argv[2]))
        return
    if sys.argv[1] == "drained":
        from bench_jobs.tasks import noop

        say(drain(40_000, noop))
        return
    if sys.argv[1] == "migrate":
        call_command("migrate", verbosity=0)
        return
    for database in (BARE, LONG):
        raw(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)', database="postgres")
        raw(f'CREATE DATABASE "{database}"', database="postgres")
        _run_in(database, "migrate")
    for asked in sys.argv[1:]:
        name, _, seconds = asked.partition("=")
        globals()[name](*([int(seconds)] if seconds else []))


if __name__ == "__main__":
    main()
