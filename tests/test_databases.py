"""Several databases, routers, replicas, requests in transactions, a user model of the project's own, no time zones."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path, reverse
from django.utils import timezone
from psycopg import sql

from pgqueue.models import Job, Worker
from pgqueue.operations import Actor, act
from pgqueue.states import Outcome
from pgqueue.testing import enqueued
from tests.factories import JobFactory
from tests.inline import work
from tests.testapp import contract_tasks, plain_tasks
from tests.testapp.contract_tasks import double

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parent.parent
ACTOR = Actor(None, "operator")


class Router:
    """Sends the queue's models to one alias for reading and to another for writing."""

    def __init__(self, *, read: str, write: str) -> None:
        self._read = read
        self._write = write

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return self._read if model._meta.app_label == "pgqueue" else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return self._write if model._meta.app_label == "pgqueue" else None


def ensure_connection(self: BaseDatabaseWrapper) -> None:
    """What Django does; its test cases replace it, and refuse an alias that they did not know from the start."""
    if self.connection is None:
        with self.wrap_database_errors:
            self.connect()


@pytest.fixture
def empty_copy(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An alias with tables of its own and no row in them: a schema of the test database, first in its search_path."""
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", ensure_connection)
    name = f"copy_{uuid.uuid4().hex[:12]}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {name}")
    given = {**connections["default"].settings_dict}
    given["OPTIONS"] = {**given["OPTIONS"], "options": f"-c search_path={name},pg_catalog"}
    connections.settings[name] = given
    call_command("migrate", "pgqueue", database=name, verbosity=0, interactive=False)
    yield name
    connections[name].close()
    del connections[name]
    del connections.settings[name]
    with connection.cursor() as cursor:
        cursor.execute(f"DROP SCHEMA {name} CASCADE")


@contextmanager
def untouched(alias: str) -> Iterator[None]:
    """Fail at the first statement sent to an alias from this thread."""

    def refuse(execute: Any, statement: str, *args: Any) -> Any:
        pytest.fail(f"sent to {alias}: {statement}")

    with connections[alias].execute_wrapper(refuse):
        yield


def rows(alias: str) -> dict[str, int]:
    """Return how many jobs and workers an alias holds, past every router."""
    return {model.__name__: model.objects.using(alias).count() for model in (Job, Worker)}


# -- routers -----------------------------------------------------------------------------------------------


@pytest.mark.case("I15")
@pytest.mark.case("I16")
def test_with_reads_routed_to_an_empty_replica_everything_is_read_where_it_is_written(
    empty_copy: str, admin_client: Client
) -> None:
    """A lagging replica would answer with old rows: this one has none at all."""
    with override_settings(DATABASE_ROUTERS=[Router(read=empty_copy, write="default")]), untouched(empty_copy):
        result, first = double.enqueue(21), contract_tasks.give_up.enqueue()
        double.using(queue_name="other").enqueue(1)
        assert len(enqueued(double)) == 2
        assert work(queues=("default",)) == 0
        assert double.get_result(result.id).return_value == 42
        assert act("requeue", first.id, version_seen=3, actor=ACTOR, reason="r").outcome == Outcome.APPLIED
        told = StringIO()
        call_command("pgqueue_status", stdout=told)
        assert "2 " in told.getvalue()
        for name in ("job", "queue", "worker", "operatoraction"):
            assert admin_client.get(reverse(f"admin:pgqueue_{name}_changelist")).status_code == 200
        page = admin_client.get(reverse("admin:pgqueue_job_change", args=[result.id]))
        assert "succeeded" in page.text
    assert rows(empty_copy) == {"Job": 0, "Worker": 0}
    assert rows("default") == {"Job": 3, "Worker": 1}


@pytest.mark.case("I12")
@pytest.mark.parametrize("how", ["router", "setting"])
def test_the_queue_may_live_in_another_database_than_the_default(empty_copy: str, how: str) -> None:
    """In another schema of the search_path, too: no statement names one."""
    given: dict[str, Any] = (
        {"DATABASE_ROUTERS": [Router(read="default", write=empty_copy)]}
        if how == "router"
        else {"PGQUEUE": {"DATABASE": empty_copy}}
    )
    with override_settings(**given):
        results = [double.enqueue(21), plain_tasks.give_back.enqueue(1), contract_tasks.double_later.enqueue(3)]
        dead = contract_tasks.give_up.enqueue()
        assert work(alias=empty_copy) == 0
        assert [result.task.get_result(result.id).return_value for result in results] == [42, 1, 6]
        assert act("requeue", dead.id, version_seen=3, actor=ACTOR, reason="r").outcome == Outcome.APPLIED
        assert Job.objects.using(empty_copy).get(pk=dead.id).state == "pending"
    assert rows("default") == {"Job": 0, "Worker": 0}
    assert rows(empty_copy) == {"Job": 4, "Worker": 1}


@pytest.mark.case("I15")
def test_a_job_commits_with_the_database_it_is_in(empty_copy: str) -> None:
    with override_settings(PGQUEUE={"DATABASE": empty_copy}):
        for alias in ("default", empty_copy):
            with transaction.atomic(using=alias):
                double.using(queue_name=f"in-{alias}").enqueue(1)
                transaction.set_rollback(True, using=alias)
    assert [job.queue for job in Job.objects.using(empty_copy)] == ["in-default"]


# -- requests in transactions --------------------------------------------------------------------------------


def enqueue_and_answer(request: HttpRequest) -> HttpResponse:
    result = double.enqueue(21)
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse(result.id)


urlpatterns = [path("enqueue/", enqueue_and_answer)]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("atomic", [True, False], ids=["ATOMIC_REQUESTS", "autocommit"])
def test_a_request_that_fails_takes_its_job_with_it_where_requests_are_transactions(atomic: bool) -> None:
    client = Client(raise_request_exception=False)
    connection.settings_dict["ATOMIC_REQUESTS"] = atomic
    try:
        answers = [client.get("/enqueue/"), client.get("/enqueue/?fail")]
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert [answer.status_code for answer in answers] == [200, 500]
    assert Job.objects.count() == (1 if atomic else 2)
    assert work() == 0
    assert double.get_result(answers[0].text).return_value == 42


# -- no time zones --------------------------------------------------------------------------------------------


@pytest.fixture
def without_time_zones() -> Iterator[None]:
    with override_settings(USE_TZ=False, TIME_ZONE="America/New_York"):
        connection.close()
        yield
    connection.close()


@pytest.mark.usefixtures("without_time_zones")
def test_without_time_zones_jobs_run_when_they_are_due_and_every_page_opens(admin_client: Client) -> None:
    now = timezone.now()
    assert timezone.is_naive(now)
    due, later = [double.using(run_after=now + timedelta(hours=hours)).enqueue(21) for hours in (-1, 1)]
    lost = JobFactory(expired=True, task=contract_tasks.nothing.module_path)
    assert work() == 0
    due.refresh()
    assert due.return_value == 42
    assert abs(due.finished_at - now) < timedelta(minutes=1)
    assert Job.objects.get(pk=later.id).state == "pending"
    assert Job.objects.get(pk=lost.pk).state == "succeeded"
    assert act("cancel", later.id, version_seen=1, actor=ACTOR, reason="r").outcome == Outcome.APPLIED
    for name in ("job", "queue", "worker", "operatoraction"):
        assert admin_client.get(reverse(f"admin:pgqueue_{name}_changelist")).status_code == 200
    assert admin_client.get(reverse("admin:pgqueue_job_change", args=[due.id])).status_code == 200


# -- a user model of the project's own --------------------------------------------------------------------------

PEOPLE_MODELS = """
import uuid
from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.db import models

class People(BaseUserManager):
    pass

class Person(AbstractBaseUser, PermissionsMixin):
    key = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)
    is_staff = models.BooleanField(default=True)
    USERNAME_FIELD = "email"
    objects = People()
"""
PEOPLE_SETTINGS = """
from tests.settings import *
INSTALLED_APPS = [*INSTALLED_APPS, "people"]
AUTH_USER_MODEL = "people.Person"
"""
PEOPLE_PROGRAM = """
import django; django.setup()
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.test.utils import setup_test_environment
from django.urls import reverse
from pgqueue.models import OperatorAction
from pgqueue.operations import Actor, act
from tests.testapp.contract_tasks import double

setup_test_environment()
call_command("makemigrations", "people", verbosity=0)
call_command("migrate", verbosity=0)
person = get_user_model().objects.create(email="op@example.com", is_superuser=True)
client = Client()
client.force_login(person)
job = double.enqueue(1)
assert client.get(reverse("admin:pgqueue_job_change", args=[job.id])).status_code == 200
confirm = client.get(reverse("admin:pgqueue_job_verb", args=[job.id, "cancel"]))
answer = client.post(confirm.request["PATH_INFO"], {"seen": confirm.context["token"], "reason": "r", "typed": job.id})
assert answer.status_code == 303, answer.content
entry = OperatorAction.objects.get()
assert (entry.actor_id, entry.actor_name) == (str(person.pk), "op@example.com")
person.delete()
assert client.get(reverse("admin:login")).status_code == 200
assert OperatorAction.objects.get().actor_name == "op@example.com"
print("done")
"""


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The URL of an empty database of its own."""
    name = f"test_people_{uuid.uuid4().hex}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        url = urlsplit(os.environ["DATABASE_URL"])
        yield url._replace(path=f"/{name}").geturl()
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_operators_may_be_any_user_model(tmp_path: Path, empty_database: str) -> None:
    """One with a UUID as its key and no user name; its rows may go, the audit log stays."""
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "__init__.py").touch()
    (tmp_path / "people" / "models.py").write_text(PEOPLE_MODELS)
    (tmp_path / "people_settings.py").write_text(PEOPLE_SETTINGS)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PEOPLE_PROGRAM],
        env={
            **os.environ,
            "DATABASE_URL": empty_database,
            "DJANGO_SETTINGS_MODULE": "people_settings",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
