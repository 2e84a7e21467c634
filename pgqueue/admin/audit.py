"""The audit log."""

from .base import ReadOnlyAdmin


class OperatorActionAdmin(ReadOnlyAdmin):
    """Every action and refusal, newest first."""

    list_display = (
        "created_at",
        "actor_name",
        "verb",
        "target_kind",
        "target_id",
        "outcome",
        "version_seen",
        "version_found",
        "version_after",
        "reason",
        "ticket",
    )
    sortable_by = ()
    ordering = ("-id",)
