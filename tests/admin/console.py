"""A browser's part in the tests: who is logged in, the confirm page, and what it posts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from pgqueue.admin.seen import Seen
from pgqueue.models import ApprovalRequest, Job, Limit, OperatorAction, Queue, Worker
from pgqueue.verbs import VERBS as ALL_VERBS
from tests.factories import (
    ApprovalRequestFactory,
    EffectFactory,
    JobFactory,
    LimitFactory,
    QueueFactory,
    WorkerFactory,
)

MODELS = {"job": Job, "queue": Queue, "limit": Limit, "request": ApprovalRequest, "worker": Worker}
FACTORIES = {
    "job": JobFactory,
    "queue": QueueFactory,
    "limit": LimitFactory,
    "request": ApprovalRequestFactory,
    "worker": WorkerFactory,
}
VERBS = {name: verb for name, verb in ALL_VERBS.items() if verb.kind in MODELS}
EVERYTHING = (
    *{verb.permission for verb in VERBS.values()},
    "view_job",
    "view_queue",
    "view_limit",
    "view_worker",
    "view_bulkaction",
    "view_approvalrequest",
    "view_overview",
    "view_reconcile",
    "view_operatoraction",
    "view_job_args",
    "view_job_errors",
    "bulk_job",
    "export_job",
)
FURTHER = {
    "effect": "sms",
    "remote_reference": "m_77",
    "evidence": "seen in its dashboard",
    "to": "bob",
    "snooze_minutes": "30",
    "due_minutes": "20",
    "priority": "7",
    "queue": "other",
    "max_running": "0",
    "rate_per_second": "1.5",
    "burst": "3",
    "weight": "2",
}
"""What the pages of some verbs ask for besides; other pages do not look at it."""
REASON = "the provider is back"

QUEUE_TABLES = (
    "pgqueue_job",
    "pgqueue_jobpayload",
    "pgqueue_jobresult",
    "pgqueue_attempt",
    "pgqueue_effect",
    "pgqueue_operationkey",
    "pgqueue_queue",
    "pgqueue_limit",
    "pgqueue_worker",
    "pgqueue_bulkaction",
    "pgqueue_bulkitem",
    "pgqueue_approvalrequest",
    "pgqueue_minutestat",
    "pgqueue_operatoraction",
)
AUDIT = "pgqueue_operatoraction"


def client_with(name: str, *codenames: str) -> Client:
    """Return the browser of a staff user with these permissions."""
    user = User.objects.create_user(name, password="x", is_staff=True)
    permissions = Permission.objects.filter(content_type__app_label="pgqueue", codename__in=codenames)
    assert len(permissions) == len(codenames)
    user.user_permissions.set(permissions)
    return client_of(user)


def client_of(user: User) -> Client:
    """Return a browser in which the user is logged in."""
    client = Client()
    client.force_login(user)
    client.user = user
    return client


def make(verb: str, traits: Mapping[str, Any]) -> Any:
    """Return a new target of a verb's kind."""
    if "about" in traits:
        traits = {**traits, "about": make("requeue", traits["about"])}
    row = FACTORIES[VERBS[verb].kind](**traits)
    if getattr(row, "unknown_effects", 0):
        EffectFactory(job_id=row.pk, fence=row.fence, past=True)
    return row


def page(row: Any, name: str = "change", *args: Any, site: str = "admin") -> str:
    """Return the URL of an object's page."""
    return reverse(f"{site}:pgqueue_{type(row)._meta.model_name}_{name}", args=[quote(row.pk), *args])


def confirm_url(row: Any, verb: str, site: str = "admin") -> str:
    """Return the URL of a verb's confirm page."""
    return page(row, "verb", verb, site=site)


def token_for(client: Client, row: Any, verb: str, **other: Any) -> str:
    """Sign what a page of now would show, also where no page is offered."""
    seen = {"user": str(client.user.pk), "verb": verb, "target": str(row.pk), "version": row.version}
    return Seen(**{**seen, "facts": [], "key": uuid.uuid4().hex, **other}).sign()


def filled(token: str, row: Any, **other: Any) -> dict[str, Any]:
    """Return the form as an operator fills it."""
    form = {"seen": token, "reason": REASON, "ticket": "OPS-1", "typed": str(row.pk)}
    return {**form, **FURTHER, **other}


def audited() -> list[tuple[str, str, str, str]]:
    """Return the audit log: verb, target, outcome, reason."""
    return list(OperatorAction.objects.order_by("id").values_list("verb", "target_id", "outcome", "reason"))


def columns(row: Any) -> dict[str, Any] | None:
    """Return the row as it is in the database now."""
    return type(row).objects.filter(pk=row.pk).values().first()


def checksums(*tables: str) -> dict[str, str]:
    """Return of each table a digest of every row and of the transaction that wrote it."""
    found = {}
    with connection.cursor() as cursor:
        for table in tables or QUEUE_TABLES:
            cursor.execute(f"SELECT md5(string_agg(t::text || t.xmin::text, '|' ORDER BY t::text)) FROM {table} AS t")
            found[table] = cursor.fetchone()[0]
    return found
