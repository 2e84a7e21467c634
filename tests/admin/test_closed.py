"""Nobody writes anything here but through a verb they hold the permission for."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from pgqueue.admin.base import ReadOnlyAdmin
from tests.admin.conftest import VIEWS
from tests.admin.console import (
    AUDIT,
    REASON,
    VERBS,
    audited,
    checksums,
    client_of,
    client_with,
    confirm_url,
    filled,
    make,
    page,
    token_for,
)
from tests.admin.test_verbs import TARGET_TABLES, TARGETS
from tests.factories import (
    ApprovalRequestFactory,
    AttemptFactory,
    JobFactory,
    JobPayloadFactory,
    LimitFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
)

pytestmark = pytest.mark.django_db
ROWS = {
    "job": JobFactory,
    "queue": QueueFactory,
    "limit": LimitFactory,
    "worker": WorkerFactory,
    "approvalrequest": ApprovalRequestFactory,
    "operatoraction": OperatorActionFactory,
}
FORM = {"state": "succeeded", "name": "x", "host": "x", "outcome": "x", "reason": "x", "version": "9"}
BUTTONS = ("_save", "_saveasnew", "_continue", "_addanother", "post", "_popup")
PAGES = ("change", "delete", "history")
PAGES_OF = [str(model._meta.model_name) for model, of in admin.site._registry.items() if isinstance(of, ReadOnlyAdmin)]


@pytest.fixture(params=["operator", "superuser"])
def anybody(request: pytest.FixtureRequest, db: None) -> Client:
    """Whoever could do most."""
    if request.param == "operator":
        return request.getfixturevalue("operator")
    return client_of(User.objects.create_superuser("root"))


@pytest.mark.parametrize("model", ROWS)
def test_no_page_or_post_of_the_admin_writes(model: str, anybody: Client) -> None:
    row = ROWS[model]()
    before = checksums()
    urls = [f"/admin/pgqueue/{model}/add/", *(page(row, name) for name in PAGES)]
    for url in urls:
        for button in BUTTONS:
            answer = anybody.post(url, {**FORM, button: "yes"})
            assert answer.status_code in ((200, 302) if "history" in url else (403,)), url
    assert anybody.get(urls[0]).status_code == 403
    assert anybody.get(page(row, "delete")).status_code == 403
    assert anybody.get(page(row) + "?_popup=1").status_code == 200
    assert anybody.post(page(row) + "?_popup=1", {**FORM, "_popup": "1", "_save": "1"}).status_code == 403
    assert checksums() == before


@pytest.mark.parametrize("model", ROWS)
def test_no_action_of_the_list_writes(model: str, anybody: Client) -> None:
    row = ROWS[model]()
    before = checksums()
    formset = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": str(row.pk), "form-0-state": "dead"}
    for action in ("delete_selected", "requeue", ""):
        chosen = {"action": action, "_selected_action": [str(row.pk)], "select_across": "1", "index": "0"}
        for form in (chosen, {**chosen, "post": "yes"}, {**formset, "_save": "Save"}, {**chosen, **formset}):
            assert anybody.post(f"/admin/pgqueue/{model}/", form).status_code in (200, 302, 303, 403)
        assert anybody.post(page(row), chosen).status_code == 403
    # An action of the list of jobs freezes a set, and no more than that.
    assert checksums(*TARGET_TABLES, AUDIT) == {name: before[name] for name in (*TARGET_TABLES, AUDIT)}
    if model == "job":
        return
    shown = anybody.get(f"/admin/pgqueue/{model}/").text
    assert 'name="action"' not in shown
    assert "_selected_action" not in shown


@pytest.mark.parametrize("model", ROWS)
def test_no_action_of_the_site_is_offered_or_run(model: str, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def wipe(modeladmin: Any, request: Any, queryset: Any) -> None:
        pytest.fail("an action that somebody added for the whole site was run")

    for actions in (admin.site._actions, admin.site._global_actions):
        monkeypatch.setitem(actions, "wipe", wipe)
    row = ROWS[model]()
    chosen = {"action": "wipe", "_selected_action": [str(row.pk)], "index": "0"}
    for url in (f"/admin/pgqueue/{model}/", page(row)):
        assert operator.post(url, chosen).status_code in (200, 302, 403)
        assert "wipe" not in operator.get(url).text


@pytest.mark.parametrize("method", ["get", "head", "put", "delete"])
def test_nothing_but_a_post_writes(method: str, operator: Client) -> None:
    job = JobFactory(running=True)
    kinds = {"job": job, "queue": QueueFactory(), "limit": LimitFactory(), "request": ApprovalRequestFactory()}
    kinds["worker"] = WorkerFactory()
    rows = [*kinds.values(), OperatorActionFactory(target_id=str(job.pk))]
    JobPayloadFactory(job_id=job.pk)
    AttemptFactory(job_id=job.pk)
    urls = [page(row, name) for row in rows for name in ("change", "history", "delete")]
    urls += [f"/admin/pgqueue/{model}/" for model in ROWS] + ["/admin/", "/admin/pgqueue/"]
    urls += [confirm_url(kinds[VERBS[verb].kind], verb) for verb in VERBS]
    before = checksums()
    for url in urls:
        assert getattr(operator, method)(url).status_code in (200, 302, 403, 405), url
    assert checksums() == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_viewer_sees_no_verb_and_can_use_none(verb: str, viewer: Client) -> None:
    row = make(verb, TARGETS[verb]["applied"])
    shown = viewer.get(page(row))
    assert "/do/" not in shown.text
    assert f"You do not have the permission pgqueue.{VERBS[verb].permission}." in shown.text
    before = checksums()
    answer = viewer.get(confirm_url(row, verb))
    assert answer.status_code == 403
    assert "<form" not in answer.text.replace('<form id="logout-form"', "")
    assert checksums() == before
    for form in ({}, {"reason": REASON}, filled(token_for(viewer, row, verb), row), {"look": "1"}):
        assert viewer.post(confirm_url(row, verb), form).status_code == 403
    reasons = ["-", REASON, REASON, "-"]
    assert audited() == [(verb, str(row.pk), "forbidden", reason) for reason in reasons]


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_its_own_permission(verb: str) -> None:
    row = make(verb, TARGETS[verb]["applied"])
    others = {other.permission for other in VERBS.values()} - {VERBS[verb].permission}
    client = client_with("op1", *VIEWS, *others)
    assert client.get(confirm_url(row, verb)).status_code == 403
    assert client.post(confirm_url(row, verb), filled(token_for(client, row, verb), row)).status_code == 403
    # Whoever approves may do himself what is asked for.
    needed = {VERBS[verb].permission, *(("requeue_job",) if verb == "approve" else ())}
    client = client_with("op2", *VIEWS, *needed)
    assert client.post(confirm_url(row, verb), filled(token_for(client, row, verb), row)).status_code == 303


def test_who_may_not_look_may_not_act_and_is_told_nothing() -> None:
    row = JobFactory(task="secret.task")
    client = client_with("op1", *{verb.permission for verb in VERBS.values()})
    form = filled(token_for(client, row, "hold"), row)
    for answer in (client.get(confirm_url(row, "hold")), client.post(confirm_url(row, "hold"), form)):
        assert answer.status_code == 403
        assert "secret.task" not in answer.text
    assert [outcome for _verb, _id, outcome, _reason in audited()] == ["forbidden"]


def test_a_stranger_is_sent_to_the_login() -> None:
    row = JobFactory()
    User.objects.create_user("customer", password="x")
    customer = client_of(User.objects.get(username="customer"))
    before = checksums()
    for client in (Client(), customer):
        for url in (page(row), confirm_url(row, "hold"), page(row, "history"), "/admin/pgqueue/job/"):
            assert client.get(url).headers["Location"].startswith("/admin/login/")
            assert client.post(url, {"reason": REASON}).headers["Location"].startswith("/admin/login/")
    assert checksums() == before


def test_a_permission_taken_away_meanwhile_counts(operator: Client) -> None:
    row = JobFactory()
    form = filled(operator.get(confirm_url(row, "hold")).context["token"], row)
    operator.user.user_permissions.clear()
    assert operator.post(confirm_url(row, "hold"), form).status_code == 403
    assert [outcome for _verb, _id, outcome, _reason in audited()] == ["forbidden"]


def test_a_post_without_the_csrf_token_is_refused(operator: Client) -> None:
    row = JobFactory()
    strict: Any = Client(enforce_csrf_checks=True)
    strict.force_login(operator.user)
    form = filled(token_for(operator, row, "hold"), row)
    assert strict.post(confirm_url(row, "hold"), form).status_code == 403
    assert audited() == []
    form["csrfmiddlewaretoken"] = strict.get(confirm_url(row, "hold")).context["csrf_token"]
    assert strict.post(confirm_url(row, "hold"), form).status_code == 303


def test_nobody_overrides_the_permissions_again() -> None:
    closed = ("has_add_permission", "has_change_permission", "has_delete_permission")
    for subclass in (*ReadOnlyAdmin.__subclasses__(), *ReadOnlyAdmin.__subclasses__()[0].__subclasses__()):
        assert not set(vars(subclass)) & set(closed), subclass


@pytest.mark.parametrize("permitted", [False, True], ids=["without the permission", "with it"])
@pytest.mark.parametrize("name", sorted(PAGES_OF))
@pytest.mark.parametrize("pk", ["1", "nothing"])
def test_no_stock_url_of_a_page_fails(name: str, pk: str, permitted: bool) -> None:
    client = client_with("looker", *([f"view_{name}"] if permitted else []))
    for part in ("add/", f"{pk}/", f"{pk}/change/", f"{pk}/history/"):
        answer = client.get(f"/admin/pgqueue/{name}/{part}")
        assert answer.status_code in ((200, 302, 403, 404) if permitted else (302, 403)), part
    assert client.get(f"/admin/pgqueue/{name}/{pk}/delete/").status_code == 403
