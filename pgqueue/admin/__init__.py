"""The console in the Django admin: models are read-only, every write is an operator verb behind a confirm page."""

from django.contrib import admin

from ..models import ApprovalRequest, BulkAction, Job, Limit, OperatorAction, Overview, Queue, Reconcile, Worker
from . import checks as checks
from .approvals import ApprovalRequestAdmin
from .audit import OperatorActionAdmin
from .bulkactions import BulkActionAdmin
from .inbox import ReconcileAdmin
from .jobs import JobAdmin
from .limits import LimitAdmin
from .overview import OverviewAdmin
from .queues import QueueAdmin
from .workers import WorkerAdmin

admin.site.register(Overview, OverviewAdmin)
admin.site.register(Job, JobAdmin)
admin.site.register(Queue, QueueAdmin)
admin.site.register(Limit, LimitAdmin)
admin.site.register(Reconcile, ReconcileAdmin)
admin.site.register(Worker, WorkerAdmin)
admin.site.register(BulkAction, BulkActionAdmin)
admin.site.register(ApprovalRequest, ApprovalRequestAdmin)
admin.site.register(OperatorAction, OperatorActionAdmin)

__all__ = [
    "ApprovalRequestAdmin",
    "BulkActionAdmin",
    "JobAdmin",
    "LimitAdmin",
    "OperatorActionAdmin",
    "OverviewAdmin",
    "QueueAdmin",
    "ReconcileAdmin",
    "WorkerAdmin",
]
