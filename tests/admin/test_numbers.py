"""Ids, fences and versions are shown as they are typed, whatever the site does to numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client, override_settings

from pgqueue.models import Attempt
from tests.admin.console import confirm_url, page
from tests.admin.test_pages import JOBS, plain
from tests.factories import (
    ApprovalRequestFactory,
    BulkActionFactory,
    BulkItemFactory,
    EffectFactory,
    JobFactory,
    LimitFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
)

pytestmark = pytest.mark.django_db
LARGE = 1_234_567
GROUPED = re.compile(r"1[.,\u00a0\u202f ']234[.,\u00a0\u202f ']5\d\d")
LISTS = ("queue", "limit", "job", "reconcile", "worker", "bulkaction", "approvalrequest", "operatoraction")


@pytest.fixture
def rows(db: None) -> list[Any]:
    """Rows whose every id, fence and version has seven digits."""
    told = {"version": LARGE, "fence": LARGE + 1, "parent_id": LARGE + 2, "cloned_from_id": LARGE + 3}
    job = JobFactory(id=LARGE, unknown=True, settled_by=LARGE + 4, schedule_id=LARGE + 5, **told)
    ended = JobFactory(id=LARGE + 6, dead=True, version=LARGE)
    running = JobFactory(id=LARGE + 7, running=True, worker_id=LARGE, fence=LARGE, version=LARGE)
    EffectFactory(job_id=job.pk, fence=job.fence, past=True)
    Attempt.objects.create(
        job_id=job.pk, fence=LARGE, worker_id=LARGE, ended_at=job.created_at, number=1, outcome="lost"
    )
    bulk = BulkActionFactory(verb="requeue")
    BulkItemFactory(bulk_id=bulk.pk, job_id=ended.pk, version_seen=LARGE, version_found=LARGE, outcome="changed")
    action = OperatorActionFactory(
        id=LARGE, target_id=str(LARGE), version_seen=LARGE, version_found=LARGE, version_after=LARGE + 1
    )
    return [
        *(job, ended, running, bulk, action),
        QueueFactory(version=LARGE),
        LimitFactory(version=LARGE),
        WorkerFactory(id=LARGE, version=LARGE, pid=LARGE),
        ApprovalRequestFactory(id=LARGE, about=ended, version=LARGE),
    ]


@override_settings(USE_THOUSAND_SEPARATOR=True)
@pytest.mark.parametrize("language", ["de", "en", "fr", "zh-hans"])
def test_no_number_that_is_copied_is_grouped(language: str, rows: list[Any], operator: Client) -> None:
    urls = [f"/admin/pgqueue/{name}/" for name in LISTS] + [page(row) for row in rows]
    urls += [confirm_url(rows[1], "requeue"), confirm_url(rows[7], "drain_worker"), confirm_url(rows[0], "happened")]
    urls += ["/admin/pgqueue/overview/", f"{JOBS}?q=%23{LARGE}"]
    with override_settings(LANGUAGE_CODE=language):
        for url in urls:
            answer = operator.get(url)
            assert answer.status_code == 200, url
            assert GROUPED.findall(answer.text) == [], url
    said = plain(operator.get(page(rows[0])))
    assert {str(LARGE + number) in said for number in range(6)} == {True}
