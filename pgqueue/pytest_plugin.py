"""A pytest plugin with one fixture. Django and the helpers are imported when a test asks for it, not before."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest


@pytest.fixture
def pgqueue_jobs(db: None) -> SimpleNamespace:
    """Helpers of `pgqueue.testing`: `run`, `drain`, `enqueued`, `assert_enqueued` and `assert_not_enqueued`.

    Asks for the database as the `db` fixture of pytest-django does; `django_db(transaction=True)` is heard.
    """
    testing = importlib.import_module("pgqueue.testing")
    return SimpleNamespace(
        run=testing.run_jobs,
        drain=testing.drain_jobs,
        enqueued=testing.enqueued,
        assert_enqueued=testing.assert_enqueued,
        assert_not_enqueued=testing.assert_not_enqueued,
    )
