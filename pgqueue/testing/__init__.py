"""Helpers for the tests of applications: run jobs within the test, look at what was enqueued, lose leases.

They work on the test's own connection and in its own transaction, so in `TestCase` as well as in
`TransactionTestCase`. Import them in modules of tests: Django's apps must be loaded.
"""

from .leases import WORKER_ID, expire_lease, hold_lease, replay_stale_ending, take_over_now
from .looking import EnqueuedJob, assert_enqueued, assert_not_enqueued, enqueued
from .running import RanJob, drain_jobs, run_jobs

__all__ = [
    "WORKER_ID",
    "EnqueuedJob",
    "RanJob",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain_jobs",
    "enqueued",
    "expire_lease",
    "hold_lease",
    "replay_stale_ending",
    "run_jobs",
    "take_over_now",
]
