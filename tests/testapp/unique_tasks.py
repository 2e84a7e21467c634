"""Tasks with unique keys."""

from __future__ import annotations

from typing import Any

from pgqueue import task


@task
def until_finished(value: Any = None) -> Any:
    return value


@task(unique_until="started")
def until_started(value: Any = None) -> Any:
    return value


@task(unique_until="started", on_duplicate="replace")
def debounced(value: Any = None) -> Any:
    return value


@task(unique_until="window", window_seconds=60)
def throttled(value: Any = None) -> Any:
    return value
