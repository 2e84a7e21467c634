"""What is said of a console that was opened wider than it should be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.sites import all_sites
from django.core import checks
from django.core.checks import CheckMessage
from django.db import connection

from pgqueue.admin import JobAdmin
from pgqueue.admin.checks import check_actions, check_argument_index, check_closed, check_csrf, check_retention
from pgqueue.installation_checks import check_tables
from pgqueue.models import Job


@admin.action(permissions=["view"])
def asked(modeladmin: Any, request: Any, queryset: Any) -> None:
    """An action that asks for a permission."""


@pytest.fixture
def site() -> Iterator[admin.AdminSite]:
    """A site of somebody's own."""
    site = admin.AdminSite(name="theirs")
    yield site
    all_sites.discard(site)


def told(messages: list[CheckMessage]) -> list[tuple[str | None, str]]:
    return [(message.id, message.msg) for message in messages]


def test_the_console_as_it_comes_passes() -> None:
    assert [*check_actions(None), *check_csrf(None), *check_closed(None)] == []


def test_an_action_that_everybody_may_run_is_an_error(site: admin.AdminSite) -> None:
    def wipe(modeladmin: Any, request: Any, queryset: Any) -> None:
        pytest.fail("never run")

    class Wide(JobAdmin):
        actions = (asked, wipe)

    site.register(Job, Wide)
    assert told(check_actions(None)) == [("pgqueue.E021", "Wide has the action wipe, which asks for no permission.")]


@pytest.mark.parametrize("name", ["has_add_permission", "has_change_permission", "has_delete_permission"])
def test_a_subclass_that_lets_rows_be_written_is_an_error(name: str, site: admin.AdminSite) -> None:
    site.register(Job, type("Open", (JobAdmin,), {name: lambda self, request, obj=None: True}))
    ((id, message),) = told(check_closed(None))
    assert id == "pgqueue.E025"
    assert f"Open overrides {name}" in message


def test_forms_without_protection_are_a_warning(settings: Any) -> None:
    settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if "csrf" not in path]
    assert [id for id, _message in told(check_csrf(None))] == ["pgqueue.W022"]


def test_a_retention_shorter_than_the_figures_is_a_warning(settings: Any) -> None:
    assert check_retention(None) == []
    settings.PGQUEUE = {"RETENTION_SECONDS": 86_400, "DEAD_RETENTION_SECONDS": 30 * 86_400}
    assert [id for id, _message in told(check_retention(None))] == ["pgqueue.W024"]


@pytest.mark.django_db
def test_the_index_of_arguments_is_asked_for_where_the_database_is_checked() -> None:
    assert check_argument_index(None) == []
    assert [id for id, _message in told(check_argument_index(None, databases=["default"]))] == ["pgqueue.W023"]
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX ON pgqueue_jobpayload USING gin (kwargs jsonb_path_ops)")
    assert check_argument_index(None, databases=["default"]) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("ALTER TABLE pgqueue_job RENAME TO elsewhere", "the queue's tables"),
        ("ALTER SEQUENCE pgqueue_fence RENAME TO elsewhere", "fence"),
        ("ALTER TABLE pgqueue_job DROP CONSTRAINT pgqueue_job_rules", "rules"),
        ("DROP FUNCTION pgqueue_tokens", "tokens"),
        ("DROP TRIGGER pgqueue_operatoraction_append_only ON pgqueue_operatoraction", "append_only"),
    ],
)
def test_a_database_that_lacks_something_is_told_where_it_is_checked(
    statement: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_tables(None, databases=["default"]) == []
    with connection.cursor() as cursor:
        cursor.execute(statement)
    assert check_tables(None) == []
    ((id, message),) = told(check_tables(None, databases=["default"]))
    assert (id, missing in message) == ("pgqueue.W027", True)
    monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
    assert check_tables(None, databases=["default"]) == []


@pytest.mark.django_db
def test_whoever_migrates_or_tests_is_told_of_no_index() -> None:
    """Both run the checks of the database, without those for a deployment."""
    assert [message.id for message in checks.run_checks(databases=["default"])] == []
    deploying = checks.run_checks(include_deployment_checks=True, databases=["default"])
    assert "pgqueue.W023" in [message.id for message in deploying]
