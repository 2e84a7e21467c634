"""A shop's campaign desk, run end to end: `python -m demo_project.demo [--once]`.

500 recipients get one coupon each by SMS, and 20 get money back, by one task for each recovery policy. The provider
throttles, fails, hangs up after it has done what it was asked for or before, and kills workers on the way. Two payouts
are left for a person, on purpose. At the end the database is compared with the provider's own ledger. Then the site
stays up until Ctrl-C; with `--once` the demo ends with status 0 if both agree and 1 if they do not.

With `--no-idempotency` the provider does not know its keys again. What the shop else sends again under its key, it
then declares to be asked about, and the ledger has to agree all the same.

Nothing is left running, whichever way it ends. With DATABASE_URL set it uses that database: it migrates it
and adds a superuser `demo`, recipients and a campaign.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import psycopg

from demo_project import ledger, postgres
from demo_project.addresses import answers, free_port
from demo_project.ledger import Entry, PayoutRow
from demo_project.processes import Child, Children, Interrupts, StoppedError
from demo_project.progress import UNFINISHED, Progress
from demo_project.report import Console, describe, describe_kill, describe_payouts, summarise

PROJECT = Path(__file__).resolve().parent.parent
RECIPIENTS = Path(__file__).with_name("recipients.csv")
PAYOUTS = Path(__file__).with_name("payouts.csv")
SENDERS = 2
SENDING = ("--exclude-queue", "payouts", "--lease-seconds", "30")
PAYING = ("--queue", "payouts", "--concurrency", "1", "--lease-seconds", "15")
"""One payout at a time: the provider's kill meets no other."""
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
    parser.add_argument("--no-idempotency", action="store_true", help="let the provider forget its idempotency keys")
    options = parser.parse_args(argv)
    console, interrupts = Console(sys.stdout), Interrupts()
    interrupts.install()
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-demo-"))
    status = _run(console, interrupts, directory, once=options.once, forgetful=options.no_idempotency)
    if status == 1:
        console.say(f"ledger and logs are kept in {directory}")
    else:
        shutil.rmtree(directory)
    return status


def _run(console: Console, interrupts: Interrupts, directory: Path, *, once: bool, forgetful: bool) -> int:
    """Run the demo and return the exit status; everything it started has ended by then."""
    try:
        with postgres.running("demo") as url, Children(directory=PROJECT, logs=directory) as children:
            children.environment |= {"DATABASE_URL": url, "PROVIDER_KEEPS_KEYS": str(int(not forgetful))}
            demo = Demo(console, interrupts, children, directory / "ledger.jsonl", url, forgetful)
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
    forgetful: bool
    workers: dict[Child, tuple[str, ...]] = field(default_factory=dict)
    """Each with its options, the ended ones too."""
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
        self.console.say(f"look first at the inbox: http://{address}/admin/pgqueue/reconcile/")
        for row in progress.payouts():
            if row.state == "unknown":
                self.console.say(self.describe_unknown(row, progress))
        if not once:
            told = self.result(self.manage("demo_showcase")).strip()
            self.console.say(f"more rows to look at, on the overview: {told}")
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
        return self.manage("load_campaign", str(RECIPIENTS), "--payouts", str(PAYOUTS), "--campaign", campaign)

    def start_provider(self, key_prefix: str) -> None:
        """Start it with the order to kill a worker of this campaign, not of one that an earlier demo left."""
        module = (sys.executable, "-m", "demo_project.provider")
        options: tuple[str, ...] = ("--ledger", str(self.ledger), *PROVIDER_OPTIONS, "--kill-key-prefix", key_prefix)
        options += ("--no-idempotency",) if self.forgetful else ()
        provider = self.children.start("provider", [*module, *options])
        self.wait_until(lambda: provider.output().endswith("\n"), provider)
        url = self.children.environment["SMS_PROVIDER_URL"] = provider.output().strip()
        forgets = ", and forgets its idempotency keys" if self.forgetful else ""
        self.console.say(f"the provider of messages and payments is up: {url}{forgets}")

    def start_site(self) -> str:
        port = free_port(preferred=8000)
        if port is None:
            raise DemoError("this machine has no free port for the site: end a program that listens on one")
        address = f"127.0.0.1:{port}"
        site = self.children.start("site", [sys.executable, "manage.py", "runserver", "--noreload", address])
        self.wait_until(lambda: answers(address), site)
        return address

    def start_workers(self) -> None:
        for options in (*[SENDING] * SENDERS, PAYING):
            self.start_worker(options)

    def start_worker(self, options: tuple[str, ...]) -> None:
        command = [sys.executable, "manage.py", "runworker", *options]
        worker = self.children.start(f"worker {len(self.workers) + 1}", command)
        self.workers[worker] = options
        self.console.say(f"{worker.name} is started (pid {worker.pid}): manage.py {' '.join(command[2:])}")

    def watch(self, progress: Progress) -> None:
        """Show the jobs until none is left to do."""
        deadline = time.monotonic() + CAMPAIGN_SECONDS
        while any((states := progress.states())[state] for state in UNFINISHED):
            self.report_ended_workers()
            if len(self.ended_workers) == len(self.workers):
                raise DemoError("no worker is left; the log files tell why")
            if time.monotonic() > deadline:
                self.console.say(f"not done after {CAMPAIGN_SECONDS} s; the check tells what is missing")
                return
            self.console.progress(describe(states) + self.describe_wait(progress))
            self.interrupts.pause(0.5)

    def report_ended_workers(self) -> None:
        for worker, options in list(self.workers.items()):
            if worker in self.ended_workers or worker.poll() is None:
                continue
            self.ended_workers.append(worker)
            kills = [entry for entry in ledger.read(self.ledger) if entry["event"] == "kill"]
            kill = next((kill for kill in kills if kill["pid"] == worker.pid), None)
            self.console.say(_failure(worker) if kill is None else describe_kill(kill))
            if kill is not None:
                self.start_worker(options)

    def describe_wait(self, progress: Progress) -> str:
        pids = [worker.pid for worker in self.ended_workers]
        seconds = progress.lease_seconds_left(pids)
        return f" · the lost worker's leases end in {seconds} s" if seconds else ""

    def check(self, progress: Progress) -> bool:
        """Compare the database with the provider's ledger, print the summary and return the verdict."""
        phones = {int(row["user_id"]): row["phone"] for row in _read(RECIPIENTS)}
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
        agrees = self.check_payouts(progress, entries)
        return verdict.agrees and agrees

    def check_payouts(self, progress: Progress, entries: list[Entry]) -> bool:
        listed = _read(PAYOUTS)
        by_hand = {int(row["user_id"]) for row in listed if row["task"] == "pay_by_hand" and "." in row["account"]}
        payouts, prefix = progress.payouts(), progress.payout_prefix
        differing = ledger.check_payouts(
            entries,
            key_prefix=prefix,
            accounts={int(row["user_id"]): row["account"] for row in listed},
            by_hand=by_hand,
            payouts=payouts,
        )
        self.console.say(f"payouts     {len(payouts)}, by one task for each recovery policy")
        self.console.say("\n".join(describe_payouts(payouts, entries, key_prefix=prefix)))
        for user_id, difference in sorted(differing.items()):
            self.console.say(f"  recipient {user_id}: {difference}")
        if not differing:
            self.console.say(f"THE PAYOUTS AGREE: none twice, none lost, {len(by_hand)} wait for a person, on purpose")
        return not differing

    def describe_unknown(self, row: PayoutRow, progress: Progress) -> str:
        provider = self.children.environment["SMS_PROVIDER_URL"]
        key = quote(f"{progress.payout_prefix}{row.user_id}:pay")
        return f"  job {row.job_id} waits for a verdict; what the provider knows: curl {provider}/payments/{key}"

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


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main())
