"""Write the figures by the minute, on a worker's own connection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg

from .. import conf
from ..sql import load
from .connecting import transaction

RETENTION_SECONDS = 8 * 86_400.0
"""The longest chart shows a week."""


def add_minute_stats(connection: psycopg.Connection[Any], stats: Sequence[dict[str, Any]]) -> None:
    """Add figures to those of this minute: queue, task, outcome, error, jobs, and the histograms waits and runs."""
    with transaction(connection, timeout_seconds=conf.current().heartbeat_timeout_seconds):
        connection.execute(load("add_minute_stats"), {"stats": json.dumps(list(stats))})
