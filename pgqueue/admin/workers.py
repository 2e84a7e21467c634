"""Worker processes, alive and gone."""

from .base import ReadOnlyAdmin


class WorkerAdmin(ReadOnlyAdmin):
    """One row per start of a process."""

    list_display = ("id", "host", "pid", "slots", "started_at", "heartbeat_at", "draining", "stopped_at")
    sortable_by = ()
    ordering = ("-id",)
