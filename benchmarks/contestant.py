"""pgqueue for the queue harness: `contestants/ours.py` there is a link to this file.

Default options, the shipped migrations, Django's own settings dict for logging, `manage.py runworker`.
"""

import itertools
import os
import sys
from pathlib import Path

from benchlib import Contestant, main

sys.path.insert(0, str(Path(__file__).resolve().parent))

VARIANTS = {
    "": {},
    # Django's logger for tasks at WARNING, as many sites set it.
    "warning": {"level": "WARNING"},
    # A receiver of the application counts what finishes, and each worker holds that against the rows it settled.
    "heard": {"receiver": 1},
}
RUNS = itertools.count()
SETTLED = """
    SELECT count(*)
    FROM pgqueue_job AS job
    JOIN pgqueue_worker AS worker ON worker.id = job.settled_by
    WHERE worker.pid = %s AND job.state = 'succeeded'
"""


def configure(opt):
    """Set Django up as a project would."""
    import django
    from django.conf import settings

    logging = {"version": 1, "loggers": {"django.tasks": {"level": opt["level"]}}} if opt.get("level") else {}
    settings.configure(
        INSTALLED_APPS=["pgqueue", "bench_jobs"],
        USE_TZ=True,
        SECRET_KEY="x",
        DEBUG=False,
        LOGGING=logging,
        TASKS={"default": {"BACKEND": "pgqueue.backend.PGQueueBackend"}},
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": os.environ["PGDATABASE"],
                "USER": os.environ["PGUSER"],
                "HOST": os.environ["PGHOST"],
                "PORT": os.environ["PGPORT"],
                "CONN_MAX_AGE": None,
            }
        },
    )
    django.setup()
    if opt.get("receiver"):
        from pgqueue.compat import task_finished

        task_finished.connect(_count)


def _count(**_):
    next(RUNS)


def report():
    """Say what the receiver counted beside what its worker settled; also to the file that `PGQUEUE_HEARD` names."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(SETTLED, [os.getpid()])
        [settled] = cursor.fetchone()
    heard = f"{next(RUNS)} runs of the receiver, {settled} jobs"
    print(heard)
    if path := os.environ.get("PGQUEUE_HEARD"):
        with open(path, "a") as file:
            file.write(heard + "\n")


class Ours(Contestant):
    """Through `enqueue`, `enqueue_many` and the real worker."""

    name = "pgqueue"
    package = "pgqueue django psycopg"
    venv = "ours"
    jobs_factor = 5
    unfinished_sql = (
        "select count(*) from (select 1 from pgqueue_job where state in ('pending', 'retrying')"
        " union all select 1 from pgqueue_job where state = 'running') x"
    )
    retained_sql = """
        insert into pgqueue_job (created_at, run_at, settled_by, fence, version, claimed_at, started_at, finished_at,
            priority, lane, attempts, max_attempts, lease_losses, unknown_effects, state, queue, task, recovery, stage)
        select now(), now(), 1, 1, 3, now(), now(), now(), 0, 0, 1, 8, 0, 0, 'succeeded', 'default',
            'bench_jobs.tasks.noop', 'undeclared', 'not_called' from generate_series(1, %(n)s)
    """
    variants = VARIANTS

    def setup(self):
        """Make the tables."""
        configure(self.opt)
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def open(self):
        """Connect a producer."""
        configure(self.opt)
        from bench_jobs.tasks import noop

        self.task = noop

    def one(self):
        """Enqueue one job."""
        self.task.enqueue()

    def bulk(self, n):
        """Enqueue many, 1,000 a call."""
        import pgqueue

        call = self.task.bind()
        for start in range(0, n, 1000):
            pgqueue.enqueue_many([call] * min(1000, n - start))

    def prepare_worker(self):
        """Import what a project has imported before its worker starts."""
        configure(self.opt)
        import pgqueue.management.commands.runworker  # noqa: F401

    def worker(self):
        """Run the worker, by the command that operators use."""
        from django.core.management import call_command

        call_command("runworker", verbosity=0)
        if self.opt.get("receiver"):
            report()


if __name__ == "__main__":
    main(Ours())
