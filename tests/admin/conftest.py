"""Who looks at the console."""

from __future__ import annotations

import pytest
from django.test import Client

from pgqueue.admin.survey import forget
from tests.admin.console import EVERYTHING, client_with


@pytest.fixture(autouse=True)
def fresh_figures() -> None:
    """Let no overview show another test's figures."""
    forget()


@pytest.fixture
def operator(db: None) -> Client:
    """Somebody with every permission of the queue."""
    return client_with("op1", *EVERYTHING)


@pytest.fixture
def viewer(db: None) -> Client:
    """Somebody who may look at jobs, queues, workers and the audit log, and do nothing."""
    return client_with("viewer", *VIEWS)


VIEWS = tuple(name for name in EVERYTHING if name.startswith("view_") and name != "view_job_args")
