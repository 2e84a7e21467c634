"""Backends that choose a tenant in each cursor: no statement goes past them, no job inherits what another one set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.signals import connection_created
from django.test import override_settings

from pgqueue import conf
from pgqueue.protocol import shortcut, wrappers
from pgqueue.protocol.borrowing import borrowed
from pgqueue.protocol.connecting import connect
from pgqueue.protocol.wrappers import may_be_bypassed
from pgqueue.testing import expire_lease, hold_lease, run_jobs, take_over_now
from pgqueue.worker import executor
from tests.inline import as_in_a_web_process, row, work
from tests.testapp import effect_tasks, tenant_tasks
from tests.testapp.contract_tasks import nothing
from tests.testapp.tenant_backend import base

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

ENGINE = "tests.testapp.tenant_backend"
KEEPINGS: list[int | None] = [0, 60, None]


@contextmanager
def engine(name: str, **settings: Any) -> Iterator[None]:
    """Make connections with another backend, in every thread."""
    database = connections.settings["default"]
    before = dict(database)
    connection.close()
    del connections["default"]
    database.update(ENGINE=name, **settings)
    try:
        yield
    finally:
        connection.close()
        connection.close_pool()
        del connections["default"]
        database.clear()
        database.update(before)


@pytest.fixture
def tenants(transactional_db: None) -> Iterator[None]:
    """The backend that chooses tenants, and a column that says for whom a row was written."""
    with connect("default", role="tests") as ours:
        ours.execute(
            "ALTER TABLE pgqueue_job ADD COLUMN owner text DEFAULT current_setting('app.tenant', true);"
            "CREATE TABLE pgqueue_heard (tenant text, what text);"
            "CREATE FUNCTION pgqueue_hear() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO public.pgqueue_heard VALUES (current_setting('app.tenant', true), NEW.state);"
            " RETURN NULL; END $$;"
            "CREATE TRIGGER hear AFTER UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION pgqueue_hear()"
        )
    with engine(ENGINE):
        yield
    with connect("default", role="tests") as ours:
        ours.execute(
            "DROP TRIGGER hear ON pgqueue_job; DROP FUNCTION pgqueue_hear; DROP TABLE pgqueue_heard;"
            "ALTER TABLE pgqueue_job DROP COLUMN owner"
        )


def owners() -> list[Any]:
    """Return for whom each job was written, in their order."""
    with connect("default", role="tests") as ours:
        return [owner for (owner,) in ours.execute("SELECT owner FROM pgqueue_job ORDER BY id").fetchall()]


def heard() -> list[tuple[str, str]]:
    """Return for whom rows were changed, and to which state."""
    with connect("default", role="tests") as ours:
        return ours.execute("SELECT tenant, what FROM pgqueue_heard").fetchall()


# -- statements on Django's connection ---------------------------------------------------------------------


def test_each_of_seventeen_enqueues_is_of_the_tenant_in_force(tenants: None) -> None:
    with as_in_a_web_process():
        for tenant in "a" * 8 + "b" * 8 + "c":
            connection.tenant = tenant
            nothing.enqueue()
    assert owners() == list("a" * 8 + "b" * 8 + "c")


def test_in_a_schema_per_tenant_each_job_is_in_the_schema_in_force(tenants: None) -> None:
    with connect("default", role="tests") as ours:
        for tenant in "ab":
            ours.execute(
                f"CREATE SCHEMA schema_{tenant};"
                f"CREATE TABLE schema_{tenant}.pgqueue_job (LIKE public.pgqueue_job INCLUDING ALL)"
            )
        try:
            with as_in_a_web_process():
                for tenant in "a" * 8 + "b" * 8:
                    connection.schema = f"schema_{tenant}"
                    nothing.enqueue()
            found = [ours.execute(f"SELECT count(*) FROM schema_{tenant}.pgqueue_job").fetchone() for tenant in "ab"]
        finally:
            for tenant in "ab":
                ours.execute(f"DROP SCHEMA schema_{tenant} CASCADE")
    assert found == [(8,), (8,)]


@pytest.mark.parametrize("sends", [True, False])
def test_a_transactional_completion_is_of_the_tenant_in_force(tenants: None, sends: bool) -> None:
    def body(context: Any) -> None:
        connection.tenant = "acme"
        if sends:
            tenant_tasks.tenant_in_force()

    effect_tasks.script["run"] = body
    id = effect_tasks.transactional.enqueue("run").id
    work()
    assert row(id).state == "succeeded"
    assert ("acme", "succeeded") in heard()


def test_a_result_of_a_transactional_task_is_written_through_djangos_cursor_too(tenants: None) -> None:
    effect_tasks.script["run"] = lambda context: setattr(connection, "tenant", "acme") or 7
    result = effect_tasks.transactional.enqueue("run")
    work()
    result.refresh()
    assert result.return_value == 7
    assert ("acme", "succeeded") in heard()


def test_a_confirmation_is_of_the_tenant_in_force(tenants: None) -> None:
    def body(context: Any) -> None:
        context.effect("pay", lambda key: 7)
        connection.tenant = "acme"
        with context.confirming("pay"):
            pass

    effect_tasks.script["run"] = body
    id = effect_tasks.manual.enqueue("run").id
    work()
    assert (row(id).state, row(id).stage) == ("succeeded", "confirmed")
    assert ("acme", "running") in heard()


def test_what_tests_do_to_jobs_is_of_the_tenant_in_force(tenants: None) -> None:
    connection.tenant = "acme"
    nothing.enqueue()
    assert [ran.state for ran in run_jobs()] == ["succeeded"]
    lease = hold_lease(nothing.enqueue().id)
    expire_lease(lease.id)
    assert take_over_now() == {lease.id: "retrying"}
    assert {tenant for tenant, _ in heard()} == {"acme"}
    assert {"running", "succeeded", "retrying"} <= {state for _, state in heard()}


def test_an_error_of_the_server_is_the_drivers_as_beneath(tenants: None) -> None:
    with borrowed("default") as lent, pytest.raises(psycopg.errors.DivisionByZero):
        lent.execute("SELECT 1 / 0")
    with transaction.atomic():
        with borrowed("default") as lent, pytest.raises(psycopg.errors.DivisionByZero), lent.transaction():
            lent.execute("SELECT 1 / 0")
        nothing.enqueue()
    assert len(owners()) == 1


# -- which wrappers may be bypassed ------------------------------------------------------------------------


def wrapper_of(cls: type) -> Any:
    return cls(dict(connections.settings["default"]), "default")


def test_djangos_own_wrapper_may_be_bypassed() -> None:
    assert may_be_bypassed(wrapper_of(DatabaseWrapper))


def test_postgis_counts_as_djangos_own() -> None:
    """By the name of its module: to import it takes libraries that are not here."""
    postgis = type("DatabaseWrapper", (DatabaseWrapper,), {})
    postgis.__module__ = "django.contrib.gis.db.backends.postgis.base"
    assert may_be_bypassed(wrapper_of(postgis))


def test_a_subclass_may_not_be_bypassed_unless_it_says_so_itself() -> None:
    declared = type("Declared", (DatabaseWrapper,), {"pgqueue_plain_sessions": True})
    inherited = type("Inherited", (declared,), {})
    answers = [may_be_bypassed(wrapper_of(cls)) for cls in (base.DatabaseWrapper, declared, inherited)]
    assert answers == [False, True, False]


@pytest.mark.parametrize("name", wrappers._CURSOR_METHODS)
def test_a_patched_method_is_not_bypassed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patched = wrapper_of(DatabaseWrapper)
    original = getattr(patched, name)
    setattr(patched, name, lambda *args, **kwargs: original(*args, **kwargs))
    assert not may_be_bypassed(patched)
    monkeypatch.setattr(DatabaseWrapper, name, lambda self, *args: None)
    assert not may_be_bypassed(wrapper_of(DatabaseWrapper))


def test_an_execute_wrapper_sees_completion_and_confirmation_too() -> None:
    seen: list[str] = []

    def body(context: Any) -> None:
        connection.execute_wrappers.append(lambda execute, sql, *rest: seen.append(sql) or execute(sql, *rest))
        tenant_tasks.tenant_in_force()

    effect_tasks.script["run"] = body
    effect_tasks.transactional.enqueue("run")
    work()
    assert [sql for sql in seen if "pgqueue.complete" in sql]


def test_a_tracer_that_hides_that_it_replaced_the_method_sees_the_enqueue(monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = shortcut.CursorWrapper.execute, []

    def traced(self: Any, *args: Any) -> Any:
        seen.append(args[0])
        return original(self, *args)

    monkeypatch.setattr(shortcut.CursorWrapper, "execute", traced)
    with as_in_a_web_process():
        for _ in range(shortcut.LASTING + 2):
            nothing.enqueue()
    assert len([sql for sql in seen if "INSERT" in sql]) == shortcut.LASTING + 2


# -- from job to job ---------------------------------------------------------------------------------------


def _in_turn(*calls: Any) -> list[Any]:
    results = [call.task.using(priority=-place).enqueue(*call.args) for place, call in enumerate(calls)]
    connection.close()
    assert work(concurrency=1) == 0
    for result in results:
        result.refresh()
    return [result.return_value for result in results]


@pytest.mark.parametrize("max_age", KEEPINGS)
def test_a_tenant_that_a_task_enters_is_not_in_force_for_the_next(tenants: None, max_age: int | None) -> None:
    connections.settings["default"]["CONN_MAX_AGE"] = max_age
    tell, enter = tenant_tasks.tell_tenant, tenant_tasks.enter_tenant
    first, _, second, inside, third = _in_turn(
        tell.bind(), enter.bind("a"), tell.bind(), tenant_tasks.enter_tenant_and_look.bind("b"), tell.bind()
    )
    assert inside == ["b", "b", "schema_b, public"]
    assert first == second == third == ["nobody", "nobody", first[2]]


def test_a_pool_does_not_hand_a_tenants_session_on(tenants: None) -> None:
    pytest.importorskip("psycopg_pool")
    database = connections.settings["default"]
    connection.close()
    database["CONN_MAX_AGE"] = 0
    database["OPTIONS"] = {**database["OPTIONS"], "pool": {"min_size": 1, "max_size": 1, "timeout": 10}}
    try:
        tell = tenant_tasks.tell_tenant
        _, after = _in_turn(tenant_tasks.enter_tenant_and_look.bind("b"), tell.bind())
        assert after[:2] == ["nobody", "nobody"]
        assert "schema_b" not in after[2]
    finally:
        connection.close()
        connection.close_pool()


def test_nor_on_the_thread_of_an_async_job(tenants: None) -> None:
    connections.settings["default"]["CONN_MAX_AGE"] = None
    with override_settings(PGQUEUE={"ASYNC_THREADS": 1, "ASYNC_CONCURRENCY": 1}):
        inside, after = _in_turn(
            tenant_tasks.enter_tenant_on_a_loop.bind("a"), tenant_tasks.tell_tenant_on_a_loop.bind()
        )
    assert (inside[0], after[:2]) == ("a", ["nobody", "nobody"])


def test_what_watches_a_connection_that_a_task_leaves_is_gone_with_it() -> None:
    with engine("django.db.backends.postgresql", CONN_MAX_AGE=None):
        before, _, after = _in_turn(
            tenant_tasks.tell_wrappers.bind(),
            tenant_tasks.leave_execute_wrapper.bind(),
            tenant_tasks.tell_wrappers.bind(),
        )
    assert before == after == [0, False]


def test_a_wrapper_that_the_project_installs_for_each_connection_costs_no_connection() -> None:
    """As tracers do: what stands there from the start is no change by a task."""
    sessions: set[int] = set()

    def watch(connection: Any, **kwargs: Any) -> None:
        connection.execute_wrappers[:] = [lambda execute, *rest: execute(*rest)]
        if threading.current_thread().name.startswith("pgqueue-"):
            sessions.add(connection.connection.info.backend_pid)

    _before_ours(watch)
    try:
        with engine("django.db.backends.postgresql", CONN_MAX_AGE=None):
            _in_turn(*[tenant_tasks.tell_tenant.bind()] * 5)
    finally:
        connection_created.disconnect(watch)
    assert len(sessions) == 1


def _before_ours(receiver: Any) -> None:
    connection_created.connect(receiver)
    connection_created.receivers.insert(0, connection_created.receivers.pop())
    connection_created.sender_receivers_cache.clear()


# -- contexts ----------------------------------------------------------------------------------------------


class _Tracked(threading.Thread):
    """A thread as an error tracker makes it: its context has an object in it that copies of the context share."""

    def run(self) -> None:
        tenant_tasks.tag("of the thread")
        super().run()


def test_tags_of_one_job_are_not_there_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor.threading, "Thread", _Tracked)
    tagged = _in_turn(*[tenant_tasks.add_tag.bind(name) for name in "abc"])
    assert tagged == [{name: name} for name in "abc"]


def test_nor_on_a_loop_and_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", _Tracked)
    with override_settings(PGQUEUE={"ASYNC_CONCURRENCY": 1}):
        tagged = _in_turn(*[tenant_tasks.add_tag_on_a_loop.bind(name) for name in "abc"])
    assert tagged == [[{name: name}, {f"{name} in a thread": f"{name} in a thread"}] for name in "abc"]


# -- connections of the queue's own ------------------------------------------------------------------------

HOOK = f"{tenant_tasks.__name__}.prepare_session"


def test_the_project_prepares_each_connection_of_the_queues_own() -> None:
    """Django's signal `connection_created` is not sent for them: its receivers expect a Django wrapper."""
    signalled: list[Any] = []
    connection_created.connect(lambda **kwargs: signalled.append(kwargs), weak=False, dispatch_uid="tests")
    try:
        with override_settings(PGQUEUE={"ON_CONNECT": HOOK}), connect("default", role="heartbeat") as ours:
            row = ours.execute("SELECT current_setting('app.tenant'), current_setting('app.role')").fetchone()
    finally:
        connection_created.disconnect(dispatch_uid="tests")
    assert (row, signalled) == (("worker", "heartbeat"), [])


def test_a_worker_prepares_every_connection_it_makes() -> None:
    tenant_tasks.roles.clear()
    with override_settings(PGQUEUE={"ON_CONNECT": HOOK}):
        effect_tasks.script["run"] = lambda context: context.effect("pay", lambda key: 7)
        id = effect_tasks.manual.enqueue("run").id
        work()
    assert row(id).state == "succeeded"
    assert {"worker", "effects"} <= set(tenant_tasks.roles)


@pytest.mark.parametrize("name", ["refuse_session", "leave_transaction"])
def test_a_connection_that_cannot_be_prepared_is_closed_and_counts_as_a_server_that_is_away(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tenant_tasks.refused.clear()
    hook = f"{tenant_tasks.__name__}.{name}"
    with override_settings(PGQUEUE={"ON_CONNECT": hook}), pytest.raises(psycopg.OperationalError, match="ON_CONNECT"):
        connect("default", role="heartbeat")
    assert [refused.closed for refused in tenant_tasks.refused] == [True]
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("connection.refused role=heartbeat")


def test_a_hook_that_cannot_be_imported_is_refused_with_a_hint() -> None:
    (problem,) = conf.problems({"ON_CONNECT": "nowhere.at_all"})
    assert problem.message == "PGQUEUE['ON_CONNECT'] is 'nowhere.at_all', which cannot be imported."
