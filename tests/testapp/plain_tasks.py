"""Tasks declared with Django's own decorator."""

from __future__ import annotations

from typing import Any

import django
from django.utils import timezone

from pgqueue.models import Queue
from tests.testapp.contract_tasks import double

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task
def give_back(value: Any = None) -> Any:
    return value


@task(priority=3, queue_name="mail")
def with_options() -> None:
    pass


@task
async def give_back_later(value: Any = None) -> Any:
    return value


@task(takes_context=True)
def tell_attempt(context: Any) -> int:
    return context.attempt


@task
def fail(message: str = "no") -> None:
    raise TypeError(message)


@task
def enqueue_inside(name: str) -> None:
    """Write a row and a job, in whatever transaction is open."""
    Queue.objects.create(name=name, created_at=timezone.now())
    double.enqueue(1)
