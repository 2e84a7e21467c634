"""What `runworker` writes to standard error: LOGGING decides, verbosity fills in what that leaves open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from pgqueue.compat import Task
from tests.faults.harness import PROJECT, database_url
from tests.testapp.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)

DJANGOS_LOGGER = Task.__module__.removesuffix(".base")
CONSOLE = {"console": {"class": "logging.StreamHandler", "formatter": "plain"}}
AT_WARNING = {"console": {**CONSOLE["console"], "level": "WARNING"}}


def _logging(**given: Any) -> dict[str, Any]:
    formatters = {"plain": {"format": "%(levelname)s by=%(name)s %(message)s"}}
    return {"version": 1, "disable_existing_loggers": False, "formatters": formatters, **given}


def _run(verbosity: int, logging: dict[str, Any]) -> list[str]:
    """Run a job in a worker process, and return the first words of what that writes to standard error."""
    add.enqueue(1, 2)
    environment = {
        **os.environ,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PGQUEUE_TEST_SETTINGS": json.dumps({"LISTEN": False}),
        "PGQUEUE_TEST_LOGGING": json.dumps(logging),
    }
    command = [sys.executable, "-m", "django", "runworker", "--burst", "--verbosity", str(verbosity)]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines()


def _events(lines: list[str]) -> list[str]:
    words = ("worker.started", "worker.stopped", "Task")
    return [word for line in lines for word in words if f" {word} " in f" {line} "]


@pytest.mark.parametrize(
    ("verbosity", "events"),
    [
        (0, []),
        (1, ["worker.started", "worker.stopped"]),
        (2, ["worker.started", "Task", "Task", "worker.stopped"]),
        (3, ["worker.started", "Task", "Task", "worker.stopped"]),
    ],
)
def test_without_a_handler_verbosity_decides(verbosity: int, events: list[str]) -> None:
    assert _events(_run(verbosity, {})) == events


def test_a_level_that_is_configured_holds() -> None:
    assert _run(3, _logging(loggers={"pgqueue": {"level": "ERROR"}, DJANGOS_LOGGER: {"level": "ERROR"}})) == []


@pytest.mark.parametrize(
    "logging",
    [
        _logging(handlers=CONSOLE, root={"handlers": ["console"], "level": "WARNING"}),
        _logging(handlers=AT_WARNING, root={"handlers": ["console"], "level": "INFO"}),
        _logging(handlers=CONSOLE, loggers={"pgqueue": {"handlers": ["console"]}}),
    ],
    ids=["root at WARNING", "handler at WARNING", "no level"],
)
def test_a_worker_says_that_it_started_where_its_lines_are_dropped(logging: dict[str, Any]) -> None:
    (line,) = _run(1, logging)
    assert line.startswith("worker.started worker=")
    assert line.endswith("(LOGGING drops the INFO lines of the logger pgqueue)")


def test_lines_that_the_project_takes_are_written_once() -> None:
    lines = _run(1, _logging(handlers=CONSOLE, root={"handlers": ["console"], "level": "INFO"}))
    assert _events(lines)[0] == "worker.started"
    assert _events(lines).count("worker.started") == 1
    assert lines[0].startswith("INFO by=pgqueue.worker.process ")


def test_at_verbosity_0_nothing_is_said_that_the_project_drops() -> None:
    assert _run(0, _logging(handlers=CONSOLE, root={"handlers": ["console"], "level": "WARNING"})) == []
