"""A shop in trouble, to practise on: `python -m demo_project.broken`, or `make demo-broken`.

The mail provider is down and 300 mails have failed; one worker was killed while it charged two cards, so nobody
knows what became of them; another one is frozen. The site stays up until Ctrl-C. Find out what is wrong, stop the
damage and repair it, in the console alone. Nothing is left running, whichever way it ends.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from demo_project import postgres
from demo_project.demo import PROJECT, Demo, DemoError
from demo_project.processes import Child, Children, Interrupts, StoppedError
from demo_project.report import Console

FAILED = 300
LATER = 120
PATIENCE_SECONDS = 120
COUNTED = """
    SELECT
        count(*) FILTER (WHERE state = 'dead'),
        count(*) FILTER (WHERE state = 'unknown'),
        count(*) FILTER (WHERE state = 'running' AND queue = 'reports'),
        count(*) FILTER (WHERE state = 'running' AND stage = 'outcome_unknown')
    FROM pgqueue_job
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo_project.broken")
    parser.add_argument("--until", type=Path, metavar="FILE", help="end when this file appears")
    until = parser.parse_args(argv).until
    console, interrupts = Console(sys.stdout), Interrupts()
    interrupts.install()
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-broken-"))
    try:
        with postgres.running("broken") as url, Children(directory=PROJECT, logs=directory) as children:
            children.environment |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "demo_project.broken_settings"}
            children.environment["SHOP_PROVIDER_PORT"] = str(_closed_port())
            shop = Broken(console, interrupts, children, directory / "ledger.jsonl", url, forgetful=False)
            return shop.break_down(until)
    except (DemoError, postgres.PostgresError) as error:
        console.say(f"FAILED: {error}")
        return 1
    except StoppedError as stopped:
        console.say(f"{stopped}: everything is stopped")
        return 0
    finally:
        shutil.rmtree(directory)


class Broken(Demo):
    """The demo's processes, in trouble."""

    before: tuple[int, ...] = (0, 0, 0, 0)
    """What `COUNTED` says of jobs that an earlier run left."""

    def break_down(self, until: Path | None) -> int:
        self.result(self.manage("migrate", "--verbosity", "0"))
        user, password = self.result(self.manage("demo_login")).split()
        entrance = f"http://{self.start_site()}/admin/  user {user}  password {password}"
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            self.before = _counted(connection)
            self._lose_two_cards(connection)
            self._freeze_a_worker(connection)
            self._fail_mails(connection)
        self.console.say(f"the shop is broken: {entrance}")
        self.console.say("find out why, stop the damage, and repair it  (Ctrl-C ends it all)")
        while until is None or not until.exists():
            self.interrupts.pause(1)
        return 0

    def _lose_two_cards(self, connection: psycopg.Connection) -> None:
        """Kill a worker that has begun to charge: its leases run out, and the outcomes are unknown."""
        self.result(self.manage("demo_orders", "cards", "--jobs", "2"))
        worker = self._worker("payments", "payments")
        self._wait(connection, worker, 3, 2)
        worker.signal(signal.SIGKILL)
        self.children.environment["SHOP_ANSWERS"] = "1"
        self.console.say(f"worker {worker.pid} was killed while it charged two cards")

    def _freeze_a_worker(self, connection: psycopg.Connection) -> None:
        self.result(self.manage("demo_orders", "exports", "--jobs", "1"))
        worker = self._worker("reports", "reports")
        self._wait(connection, worker, 2, 1)
        worker.signal(signal.SIGSTOP)
        self.console.say(f"worker {worker.pid} is frozen")

    def _fail_mails(self, connection: psycopg.Connection) -> None:
        self.result(self.manage("demo_orders", "mails", "--jobs", str(FAILED), "--later", str(LATER)))
        worker = self._worker("all", None)
        self._wait(connection, worker, 0, FAILED)
        self._wait(connection, worker, 1, 2)

    def _worker(self, name: str, queue: str | None) -> Child:
        options = () if queue is None else ("--queue", queue)
        return self.children.start(f"worker {name}", [sys.executable, "manage.py", "runworker", *options])

    def _wait(self, connection: psycopg.Connection, worker: Child, column: int, number: int) -> None:
        """Wait until a count of `COUNTED` has grown by that; a worker that ends will not get there."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _counted(connection)[column] < self.before[column] + number:
            if worker.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"{worker.name} did not get there: {worker.last_words()}")
            self.interrupts.pause(0.2)


def _counted(connection: psycopg.Connection) -> tuple[int, ...]:
    row = connection.execute(COUNTED).fetchone()
    assert row is not None
    return row


def _closed_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
