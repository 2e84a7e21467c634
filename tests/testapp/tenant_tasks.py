"""Tasks that look at, and change, what a database backend or an error tracker keeps for a thread."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from pgqueue import task

tags: ContextVar[dict[str, str] | None] = ContextVar("tags", default=None)
"""As an error tracker keeps them: one object for a context, which whoever copies the context shares."""


def tag(name: str) -> dict[str, str]:
    """Add a tag to those of the context, and return all of them."""
    found = tags.get()
    if found is None:
        tags.set(found := {})
    found[name] = name
    return dict(found)


def tenant_in_force() -> list[Any]:
    """Return the tenant of the wrapper, and that of the session as a statement sees it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('app.tenant', true), current_setting('search_path')")
        return [getattr(connection, "tenant", None), *cursor.fetchone()]


@task
def enter_tenant(name: str) -> None:
    """Act for a tenant from here on, and leave it so, without a statement."""
    connection.tenant = name
    connection.schema = f"schema_{name}"


@task
def enter_tenant_and_look(name: str) -> list[Any]:
    """Act for a tenant from here on, and leave it so, with a statement."""
    connection.tenant = name
    connection.schema = f"schema_{name}"
    return tenant_in_force()


@task
def tell_tenant() -> list[Any]:
    """Return the tenant in force."""
    return tenant_in_force()


@task
async def enter_tenant_on_a_loop(name: str) -> list[Any]:
    """Act for a tenant on the job's own thread, and leave it so."""
    return await sync_to_async(enter_tenant_and_look.func)(name)


@task
async def tell_tenant_on_a_loop() -> list[Any]:
    """Return the tenant in force on the job's own thread."""
    return await sync_to_async(tenant_in_force)()


@task
def leave_execute_wrapper() -> None:
    """Enter an `execute_wrapper` and never leave it; have every query logged."""
    connection.ensure_connection()
    connection.execute_wrappers.append(lambda execute, sql, params, many, context: execute(sql, params, many, context))
    connection.force_debug_cursor = True


@task
def tell_wrappers() -> list[Any]:
    """Return what watches the statements of this thread's connection."""
    return [len(connection.execute_wrappers), connection.force_debug_cursor]


@task
def add_tag(name: str) -> dict[str, str]:
    """Tag the context of this job."""
    return tag(name)


@task
async def add_tag_on_a_loop(name: str) -> list[dict[str, str]]:
    """Tag the context of this job, that of a thread it uses, and of one that brings no context along."""
    in_thread = await asyncio.get_running_loop().run_in_executor(None, tag, f"{name} in a thread")
    return [tag(name), in_thread]


# -- what a project does to connections of the queue's own ---------------------------------------------------

roles: list[str] = []
refused: list[Any] = []


def prepare_session(connection: Any, role: str) -> None:
    """Act for the worker's own tenant."""
    roles.append(role)
    connection.execute("SELECT set_config('app.tenant', 'worker', false), set_config('app.role', %s, false)", [role])


def refuse_session(connection: Any, role: str) -> None:
    """Fail as a hook does that has a fault."""
    refused.append(connection)
    raise LookupError(role)


def leave_transaction(connection: Any, role: str) -> None:
    """Leave a transaction open: all that the queue writes would wait for its end."""
    refused.append(connection)
    connection.execute("BEGIN")
