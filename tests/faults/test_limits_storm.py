"""The storm on limits, seen from outside by logical decoding: `benchmarks/limits_storm.py` says what must hold."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .harness import PROJECT, SHORT

pytestmark = pytest.mark.faults

SECONDS = 8 if SHORT else 60


def test_a_storm_exceeds_no_limit_and_leaves_no_slot_free_while_work_waits() -> None:
    """On a server of its own: decoding is a setting of the whole server."""
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    storm = subprocess.run(
        [sys.executable, "-m", "benchmarks.limits_storm", "--seconds", str(SECONDS)],
        cwd=PROJECT,
        env={**environment, "DJANGO_SETTINGS_MODULE": "demo_project.settings"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    print(storm.stdout)
    assert storm.returncode == 0, storm.stdout
