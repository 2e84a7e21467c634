"""What each screen of the console costs: queries on the queue's tables, and time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pgqueue import bulk
from pgqueue.admin.keyset import Order
from pgqueue.admin.survey import forget
from pgqueue.models import Job

BASE = "/admin/pgqueue"
DEEP = 0.9


def measure(user: Any, *, first: int, last: int) -> Iterator[str]:
    """Yield a line for each screen and act, of a table whose oldest and newest jobs have these numbers."""
    client = Client(headers={"host": "localhost"})
    client.force_login(user)
    deep = Order(("-id",)).mark(Job(pk=int(last - DEEP * (last - first))))
    again, dead = Job.objects.filter(state="dead").order_by("-id").values_list("pk", flat=True)[:2]
    yield f"{'screen':44} {'queries':>7} {'db ms':>8} {'all ms':>8} {'KiB':>6}"
    for path in _screens(deep, last, dead):
        yield _measured(client, path)
    yield from _acted(client, dead, again)


def _screens(deep: str, last: int, dead: int) -> list[str]:
    lists = (
        "",
        "?state=pending",
        "?state=dead",
        "?state=succeeded",
        "?state=unknown",
        "?queue=q1",
        f"?q={last}",
        "?state=running",
    )
    jobs = [f"{BASE}/job/{asked}" for asked in (*lists, f"?after={deep}", f"?state=dead&after={deep}")]
    others = [
        f"{BASE}/{name}/"
        for name in ("overview", "queue", "limit", "reconcile", "worker", "bulkaction", "operatoraction")
    ]
    return [
        *jobs,
        f"{BASE}/job/?q=error%3Ashop.errors.CardDeclined+state%3Adead",
        f"{BASE}/job/{last}/change/",
        f"{BASE}/job/{dead}/do/requeue/",
        *others,
    ]


def _measured(client: Client, path: str) -> str:
    client.get(path)
    forget()
    return _timed(path.removeprefix(BASE), lambda: client.get(path))[0]


def _acted(client: Client, dead: int, again: int) -> Iterator[str]:
    """Post one verb, then freeze a full set and run its first chunk."""
    _requeued(client, again)
    yield _requeued(client, dead)
    line, answer = _timed("freeze 10,000", lambda: client.post(f"{BASE}/job/everything/?queue=q1", {"verb": "requeue"}))
    yield line
    page = answer.headers["Location"]
    yield _timed("page of a set of 10,000", lambda: client.get(page))[0]
    (can,) = re.findall(r'<input type="submit" class="default" value="[^"]*: ([0-9]+)">', client.get(page).text)
    form = {"reason": "a measurement", "typed": can}
    yield _timed("start it", lambda: client.post(page.replace("/change/", "/do/run/"), form))[0]
    yield _timed("a chunk of 200", lambda: _Chunk(bulk.run_in_background()))[0]
    yield _timed("its page under way", lambda: client.get(page))[0]
    yield _timed("the other chunks", lambda: _Chunk(sum(iter(bulk.run_in_background, 0))))[0]


class _Chunk:
    """What a chunk answers, as a page: how many rows have their outcome."""

    content = b""

    def __init__(self, rows: int) -> None:
        self.status_code = rows


def _requeued(client: Client, number: int) -> str:
    url = f"{BASE}/job/{number}/do/requeue/"
    (token,) = re.findall(r'name="seen" value="([^"]*)"', client.get(url).text)
    form = {"seen": token, "reason": "a measurement"}
    return _timed("POST a verb", lambda: client.post(url, form))[0]


def _timed(shown: str, ask: Callable[[], Any]) -> tuple[str, Any]:
    began = time.perf_counter()
    with CaptureQueriesContext(connection) as queries:
        answer = ask()
    spent = (time.perf_counter() - began) * 1000
    ours = [query for query in queries if "pgqueue_" in query["sql"]]
    database = sum(float(query["time"]) for query in ours) * 1000
    size = len(answer.content) // 1024
    return f"{shown[:44]:44} {len(ours):>7} {database:>8.0f} {spent:>8.0f} {size:>6}  {answer.status_code}", answer
