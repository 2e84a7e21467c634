"""The console in the Django admin: models are read-only, every write is an operator verb behind a confirm page."""

from django.contrib import admin

from ..models import Job, OperatorAction, Queue, Worker
from .audit import OperatorActionAdmin
from .jobs import JobAdmin
from .queues import QueueAdmin
from .workers import WorkerAdmin

admin.site.register(Job, JobAdmin)
admin.site.register(Queue, QueueAdmin)
admin.site.register(Worker, WorkerAdmin)
admin.site.register(OperatorAction, OperatorActionAdmin)

__all__ = ["JobAdmin", "OperatorActionAdmin", "QueueAdmin", "WorkerAdmin"]
