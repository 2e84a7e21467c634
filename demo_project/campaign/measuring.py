"""What each screen of the console costs: queries on the queue's tables, and time, beside what it may cost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
TIMES = 3
"""Each page is opened so often, and the quickest counts: the first one fills caches, and the machine has other work."""
UNBOUNDED = re.compile(r"\bCOUNT\(|\bDISTINCT\b|\bOFFSET\b", re.IGNORECASE)
BOUNDED = re.compile(r""""pgqueue_bulkitem"."bulk_id" =|"pgqueue_job"."state" = 'running'""")
"""The rows of one set, at most 10,000, and those that run, as many as all workers have threads, may be counted."""


@dataclass(frozen=True)
class Budget:
    """The most that something may cost: queries on the queue's tables, and milliseconds in the database."""

    queries: int
    milliseconds: float


LIST, DUE, PAGE, LITTLE, COUNTS = Budget(2, 20), Budget(3, 20), Budget(7, 15), Budget(2, 20), Budget(2, 60)
CONFIRM, OVERVIEW, POST = Budget(3, 10), Budget(9, 60), Budget(4, 20)
FREEZE, SET, START, CHUNK = Budget(1, 500), Budget(6, 500), Budget(5, 500), Budget(10, 150)


@dataclass(frozen=True)
class Cost:
    """What something did cost."""

    shown: str
    budget: Budget | None
    status: int
    size: int
    milliseconds: float
    spent: float
    queries: list[str] = field(repr=False)

    def __str__(self) -> str:
        allowed = "" if self.budget is None else f"{self.budget.queries:>4} {self.budget.milliseconds:>5.0f}"
        told = f"{self.shown[:44]:44} {len(self.queries):>7} {self.milliseconds:>8.0f} {self.spent:>8.0f}"
        return f"{told} {self.size // 1024:>6} {self.status:>5} {allowed}"

    def excess(self, *, factor: float) -> list[str]:
        """Return what of it is too much, where a slow machine may take `factor` times as long."""
        found = [f"{self.shown}: {query[:300]}" for query in self.queries if is_unbounded(query)]
        if self.budget is None:
            return found
        if len(self.queries) > self.budget.queries:
            found.append(f"{self.shown}: {len(self.queries)} queries, of at most {self.budget.queries}")
        if self.milliseconds > factor * self.budget.milliseconds:
            most = factor * self.budget.milliseconds
            found.append(f"{self.shown}: {self.milliseconds:.0f} ms in the database, of at most {most:.0f}")
        return found


HEADING = f"{'screen':44} {'queries':>7} {'db ms':>8} {'all ms':>8} {'KiB':>6} {'':5} {'at most':>10}"


def is_unbounded(query: str) -> bool:
    """Say whether a query of a screen counts, skips or compares as many rows as there are.

    Statements of our own, which begin with their name, have caps of their own.
    """
    if "/*pgqueue." in query or "pgqueue_" not in query:
        return False
    return UNBOUNDED.search(query) is not None and BOUNDED.search(query) is None


def measure(user: Any, *, first: int, last: int) -> Iterator[Cost]:
    """Yield what each screen and act costs, of a table whose oldest and newest jobs have these numbers."""
    client = Client(headers={"host": "localhost"})
    client.force_login(user)
    deep = Order(("-id",)).mark(Job(pk=int(last - DEEP * (last - first))))
    again, dead = Job.objects.filter(state="dead").order_by("-id").values_list("pk", flat=True)[:2]
    for path, budget in _screens(deep, last, dead).items():
        yield _measured(client, path, budget)
    yield from _acted(client, dead, again)


def _screens(deep: str, last: int, dead: int) -> dict[str, Budget]:
    states = ("pending", "retrying", "running", "unknown", "dead", "succeeded")
    asked = (
        "",
        *(f"?state={state}" for state in states),
        "?queue=q1",
        f"?q={last}",
        "?sort=oldest",
        "?state=running&sort=longest",
        "?q=error%3Ashop.errors.CardDeclined+state%3Adead",
        "?q=task%3Ashop.tasks.charge_card+state%3Aretrying",
        f"?after={deep}",
        f"?before={deep}",
        f"?state=dead&after={deep}",
        f"?state=succeeded&after={deep}",
    )
    little = ("limit", "reconcile", "worker", "bulkaction", "approvalrequest", "operatoraction")
    return {
        # A list with due jobs also asks what they wait for.
        **{f"{BASE}/job/{each}": DUE if "pending" in each or "retrying" in each else LIST for each in asked},
        f"{BASE}/job/{last}/change/": PAGE,
        f"{BASE}/job/{dead}/change/": PAGE,
        f"{BASE}/job/{dead}/do/requeue/": CONFIRM,
        f"{BASE}/overview/": OVERVIEW,
        f"{BASE}/queue/": COUNTS,
        **{f"{BASE}/{name}/": LITTLE for name in little},
    }


def _measured(client: Client, path: str, budget: Budget) -> Cost:
    costs = []
    for _ in range(TIMES):
        forget()
        costs.append(_timed(path.removeprefix(BASE), budget, lambda: client.get(path))[0])
    return min(costs, key=lambda cost: cost.milliseconds)


def _acted(client: Client, dead: int, again: int) -> Iterator[Cost]:
    """Post one verb, then freeze a full set, start it, and do a worker's part of it."""
    _requeued(client, again)
    yield _requeued(client, dead)
    everything = f"{BASE}/job/everything/?queue=q1"
    cost, answer = _timed("freeze 10,000", FREEZE, lambda: client.post(everything, {"verb": "requeue"}))
    yield cost
    page = answer.headers["Location"]
    yield _timed("page of a set of 10,000", SET, lambda: client.get(page))[0]
    (can,) = re.findall(r'<input type="submit" class="default" value="[^"]*: ([0-9]+)">', client.get(page).text)
    form = {"reason": "a measurement", "typed": can}
    yield _timed("start it", START, lambda: client.post(page.replace("/change/", "/do/run/"), form))[0]
    yield _timed("a chunk of 200", CHUNK, lambda: _Chunk(bulk.run_in_background()))[0]
    yield _timed("its page under way", SET, lambda: client.get(page))[0]
    yield _timed("the other chunks", None, lambda: _Chunk(sum(iter(bulk.run_in_background, 0))))[0]


class _Chunk:
    """What a chunk answers, as a page: how many rows have their outcome."""

    content = b""

    def __init__(self, rows: int) -> None:
        self.status_code = rows


def _requeued(client: Client, number: int) -> Cost:
    url = f"{BASE}/job/{number}/do/requeue/"
    (token,) = re.findall(r'name="seen" value="([^"]*)"', client.get(url).text)
    form = {"seen": token, "reason": "a measurement"}
    return _timed("POST a verb", POST, lambda: client.post(url, form))[0]


def _timed(shown: str, budget: Budget | None, ask: Callable[[], Any]) -> tuple[Cost, Any]:
    began = time.perf_counter()
    with CaptureQueriesContext(connection) as queries:
        answer = ask()
    spent = (time.perf_counter() - began) * 1000
    ours = [query for query in queries if "pgqueue_" in query["sql"]]
    database = sum(float(query["time"]) for query in ours) * 1000
    told = [query["sql"] for query in ours]
    return Cost(shown, budget, answer.status_code, len(answer.content), database, spent, told), answer
