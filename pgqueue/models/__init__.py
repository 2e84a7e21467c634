"""The schema, for migrations and for reading. Rows are written by `protocol` only: nobody calls save()."""

from .jobs import Attempt, Effect, Job, JobPayload, JobResult, OperationKey
from .operating import OperatorAction, Queue, Worker

__all__ = [
    "Attempt",
    "Effect",
    "Job",
    "JobPayload",
    "JobResult",
    "OperationKey",
    "OperatorAction",
    "Queue",
    "Worker",
]
