"""What outlives a job so that it is not enqueued twice."""

from __future__ import annotations

from django.db import models


class OperationKey(models.Model):
    """A spent key of a business operation. Outlives its job, so that the key stays spent."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField()
    created_at = models.DateTimeField()
    task = models.TextField()
    key = models.TextField()
    digest = models.TextField()

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["key", "task"], name="pgqueue_operationkey_once"),)


class Window(models.Model):
    """The latest window of a unique key that is throttled, and the job that was enqueued in it."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField()
    created_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    task = models.TextField()
    key = models.TextField()

    class Meta:
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["task", "key"], name="pgqueue_window_once"),)
