"""A shop's campaign desk, run end to end: `python -m demo_project.demo [--once]`.

500 recipients get one coupon each by SMS. The provider throttles, fails, hangs up after it has sent, and
kills a worker on the way. At the end the database is compared with the provider's own ledger. Then the site
stays up until Ctrl-C; with `--once` the demo ends with status 0 if both agree and 1 if they do not.

Nothing is left running, whichever way it ends. With DATABASE_URL set it uses that database: it migrates it
and adds a superuser `demo`, recipients and a campaign.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import http.client
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from demo_project import ledger, postgres
from demo_project.processes import Child, Children, Interrupts, StoppedError
from demo_project.progress import UNFINISHED, Progress
from demo_project.report import Console, describe, describe_kill, summarise

PROJECT = Path(__file__).resolve().parent.parent
RECIPIENTS = Path(__file__).with_name("recipients.csv")
WORKERS = 3
START_SECONDS = 60
CAMPAIGN_SECONDS = 170
KILL_ON_REQUEST = 150
PROVIDER_OPTIONS = (
    *("--seed", "7", "--latency-seconds", "0.3"),
    *("--throttle-rate", "0.06", "--retry-after-seconds", "2"),
    *("--error-rate", "0.04", "--drop-rate", "0.04"),
    *("--kill-on-request", str(KILL_ON_REQUEST), "--kill-moment", "after"),
)


class DemoError(Exception):
    """A step failed; the message says what to do."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo_project.demo")
    parser.add_argument("--once", action="store_true", help="end after the check; its status is the verdict")
    once = parser.parse_args(argv).once
    console, interrupts = Console(sys.stdout), Interrupts()
    interrupts.install()
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-demo-"))
    status = _run(console, interrupts, directory, once=once)
    if status == 1:
        console.say(f"ledger and logs are kept in {directory}")
    else:
        shutil.rmtree(directory)
    return status


def _run(console: Console, interrupts: Interrupts, directory: Path, *, once: bool) -> int:
    """Run the demo and return the exit status; everything it started has ended by then."""
    try:
        with postgres.running("demo") as url, Children(directory=PROJECT, logs=directory) as children:
            children.environment["DATABASE_URL"] = url
            demo = Demo(console, interrupts, children, directory / "ledger.jsonl", url)
            return demo.run(once=once)
    except (DemoError, postgres.PostgresError) as error:
        console.say(f"FAILED: {error}")
        return 1
    except psycopg.Error as error:
        console.say(f"FAILED: the database does not answer: {error}")
        console.say("check DATABASE_URL, or unset it: the demo then starts a PostgreSQL of its own")
        return 1
    except StoppedError as stopped:
        console.say(f"{stopped}: everything is stopped, nothing was checked")
        return 128 + stopped.signal_number


@dataclass
class Demo:
    """The steps, in their order."""

    console: Console
    interrupts: Interrupts
    children: Children
    ledger: Path
    database_url: str
    workers: list[Child] = field(default_factory=list)
    ended_workers: list[Child] = field(default_factory=list)

    def run(self, *, once: bool) -> int:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            self.console.say("PostgreSQL is up")
            _claim_database(connection)
            return self.run_steps(connection, once=once)

    def run_steps(self, connection: psycopg.Connection, *, once: bool) -> int:
        self.result(self.manage("migrate", "--verbosity", "0"))
        user, password = self.result(self.manage("demo_login")).split()
        self.console.say("tables are migrated")
        address = self.start_site()
        entrance = f"http://{address}/admin/  user {user}  password {password}"
        self.console.say(f"the site is up: {entrance}")
        campaign = f"Autumn sale {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        progress = Progress(connection, campaign_id=int(self.result(self.load(campaign))))
        self.console.say(f"campaign {campaign!r} is loaded: {progress.jobs} jobs")
        self.start_provider(progress.key_prefix)
        self.start_workers()
        again = self.load(campaign)
        self.watch(progress)
        self.result(again)
        self.console.say(f"the campaign was loaded once more meanwhile: {progress.count_new_jobs()} new jobs")
        agrees = self.check(progress)
        if not once:
            told = self.result(self.manage("demo_showcase")).strip()
            self.console.say(f"more rows to look at: {told}")
            self.console.say(f"look first at the overview: http://{address}/admin/pgqueue/overview/")
            self.console.say(f"click around: {entrance}  (Ctrl-C ends it all)")
            self.stay_up()
        return 0 if agrees else 1

    def manage(self, *arguments: str) -> Child:
        return self.children.start(arguments[0], [sys.executable, "manage.py", *arguments])

    def result(self, command: Child) -> str:
        """Wait for the end of a management command and return what it printed."""
        self.wait_until(lambda: command.poll() is not None, command)
        if command.poll() != 0:
            raise DemoError(_failure(command))
        return command.output()

    def load(self, campaign: str) -> Child:
        return self.manage("load_campaign", str(RECIPIENTS), "--campaign", campaign)

    def start_provider(self, key_prefix: str) -> None:
        """Start it with the order to kill a worker of this campaign, not of one that an earlier demo left."""
        module = (sys.executable, "-m", "demo_project.provider")
        options = ("--ledger", str(self.ledger), *PROVIDER_OPTIONS, "--kill-key-prefix", key_prefix)
        provider = self.children.start("provider", [*module, *options])
        self.wait_until(lambda: provider.output().endswith("\n"), provider)
        url = self.children.environment["SMS_PROVIDER_URL"] = provider.output().strip()
        self.console.say(f"the SMS provider is up: {url}")

    def start_site(self) -> str:
        address = f"127.0.0.1:{_free_port(preferred=8000)}"
        site = self.children.start("site", [sys.executable, "manage.py", "runserver", "--noreload", address])
        self.wait_until(lambda: _answers(address), site)
        return address

    def start_workers(self) -> None:
        for number in range(1, WORKERS + 1):
            worker = self.children.start(f"worker {number}", [sys.executable, "manage.py", "runworker"])
            self.workers.append(worker)
        pids = ", ".join(str(worker.pid) for worker in self.workers)
        self.console.say(f"{WORKERS} workers are started: manage.py runworker (pids {pids})")

    def watch(self, progress: Progress) -> None:
        """Show the jobs until none is left to do."""
        deadline = time.monotonic() + CAMPAIGN_SECONDS
        while any((states := progress.states())[state] for state in UNFINISHED):
            self.report_ended_workers()
            if len(self.ended_workers) == WORKERS:
                raise DemoError("no worker is left; the log files tell why")
            if time.monotonic() > deadline:
                self.console.say(f"not done after {CAMPAIGN_SECONDS} s; the check tells what is missing")
                return
            self.console.progress(describe(states) + self.describe_wait(progress))
            self.interrupts.pause(0.5)

    def report_ended_workers(self) -> None:
        for worker in self.workers:
            if worker in self.ended_workers or worker.poll() is None:
                continue
            self.ended_workers.append(worker)
            kills = [entry for entry in ledger.read(self.ledger) if entry["event"] == "kill"]
            kill = next((kill for kill in kills if kill["pid"] == worker.pid), None)
            self.console.say(_failure(worker) if kill is None else describe_kill(kill, worker.name))

    def describe_wait(self, progress: Progress) -> str:
        pids = [worker.pid for worker in self.ended_workers]
        seconds = progress.lease_seconds_left(pids)
        return f" · the lost worker's leases end in {seconds} s" if seconds else ""

    def check(self, progress: Progress) -> bool:
        """Compare the database with the provider's ledger, print the summary and return the verdict."""
        with RECIPIENTS.open(newline="", encoding="utf-8") as file:
            phones = {int(row["user_id"]): row["phone"] for row in csv.DictReader(file)}
        coupons = progress.coupons()
        entries = ledger.read(self.ledger)
        verdict = ledger.check(entries, key_prefix=progress.key_prefix, phones=phones, coupons=coupons)
        summary = summarise(
            verdict,
            recipients=len(phones),
            coupons=len(coupons),
            taken_over=progress.taken_over(),
            unsuccessful=progress.unsuccessful(),
        )
        self.console.say("\n".join(summary))
        return verdict.agrees

    def stay_up(self) -> None:
        try:
            while True:
                self.report_ended_workers()
                self.interrupts.pause(1)
        except StoppedError as stopped:
            self.console.say(f"{stopped}: stopping everything")

    def wait_until(self, ready: Callable[[], bool], child: Child) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            # Looked at first: a child that ends between the two questions has still done what it could.
            ended = child.poll() is not None
            if ready():
                return
            if ended or time.monotonic() > deadline:
                raise DemoError(_failure(child))
            self.interrupts.pause(0.05)


def _claim_database(connection: psycopg.Connection) -> None:
    """Refuse a second demo: its workers would run our jobs and send our messages through its provider."""
    row = connection.execute("SELECT pg_try_advisory_lock(hashtext('pgqueue demo'))").fetchone()
    if row != (True,):
        raise DemoError("another demo is running on this database: end it first, or set another DATABASE_URL")


def _failure(child: Child) -> str:
    status = child.poll()
    happened = f"did not get ready in {START_SECONDS} s" if status is None else f"ended with status {status}"
    command = " ".join(child.command)
    advice = f"mend what it complains of and start the demo again; all it said is in {child.log}"
    return f"{child.name} {happened}: {command}\n{child.last_words()}\n{advice}"


def _free_port(*, preferred: int) -> int:
    """Return `preferred` if nobody listens there, else a port that is free now."""
    for port in (preferred, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As the site will: a port whose last connections are only just closed counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise DemoError("this machine has no free port for the site: end a program that listens on one")


def _answers(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/admin/login/")
        return connection.getresponse().status == 200
    return False


if __name__ == "__main__":
    sys.exit(main())
