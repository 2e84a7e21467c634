"""The schema, for migrations and for reading. Rows are written by `protocol` only: nobody calls save()."""

from .approvals import ApprovalRequest
from .bulk import BulkAction, BulkItem
from .console import MinuteStat, Overview, Reconcile
from .effects import Effect, Probe
from .jobs import Attempt, Job, JobPayload, JobResult
from .keys import OperationKey, Window
from .operating import Limit, OperatorAction, Queue, Worker

__all__ = [
    "ApprovalRequest",
    "Attempt",
    "BulkAction",
    "BulkItem",
    "Effect",
    "Job",
    "JobPayload",
    "JobResult",
    "Limit",
    "MinuteStat",
    "OperationKey",
    "OperatorAction",
    "Overview",
    "Probe",
    "Queue",
    "Reconcile",
    "Window",
    "Worker",
]
