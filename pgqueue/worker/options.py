"""What a worker was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from ..states import Lane


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `runworker`, checked; None where a setting decides."""

    alias: str
    concurrency: int
    lease_seconds: float
    poll_seconds: float
    queues: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    burst: bool = False
    """Stop as soon as nothing is due."""
    max_jobs: int | None = None
    async_concurrency: int | None = None
    max_memory_mb: int | None = None
    announces_start: bool = False
    """Whether the start is told on standard error where no handler of the project takes the log line."""
    lanes: tuple[Lane, ...] = tuple(Lane)
    """What this process claims itself."""
    quarantine: tuple[str, ...] | None = None
    """The command line of the process that this one starts for jobs of lane `ALONE`."""
    parent_id: int | None = None
    """The worker of which this process is the quarantine."""
