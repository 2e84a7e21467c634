"""A real browser on a real server: Debian's Chromium, driven by Playwright, under a strict policy.

Who runs these: `make browser`. Acceptance items that a test covers are its markers, and are listed at the end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings

from pgqueue.admin.survey import forget

EXECUTABLE = os.environ.get("PGQUEUE_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_results: dict[str, list[str]] = {}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser. Its driver runs an event loop in this thread, in which Django would refuse to query."""
    api = pytest.importorskip("playwright.sync_api", reason="make browser installs playwright")
    with pytest.MonkeyPatch.context() as patch, api.sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, headless=True, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def policy() -> Iterator[None]:
    """The server sends a strict policy, and speaks the browser's language."""
    middleware = [
        *django_settings.MIDDLEWARE,
        "django.middleware.locale.LocaleMiddleware",
        "tests.browser.csp.policy",
    ]
    with override_settings(MIDDLEWARE=middleware):
        yield


@pytest.fixture
def site(policy: None, live_server: Any, transactional_db: None) -> str:
    """Address of the server. Every overview reads anew."""
    forget()
    return str(live_server.url)


class Person:
    """Somebody with a browser of their own, who is logged in."""

    def __init__(self, site: str, context: Any, user: User) -> None:
        self.site, self.context, self.user = site, context, user
        self.complaints: list[str] = []
        client = Client()
        client.force_login(user)
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site}])
        self.page = context.new_page()
        self.page.on("console", self._hear)

    def _hear(self, message: Any) -> None:
        if message.type == "error" and "favicon" not in f"{message.text} {message.location['url']}":
            self.complaints.append(message.text)

    def go(self, path: str) -> Any:
        """Open a page of the site."""
        forget()
        return self.page.goto(self.site + path)

    def text(self) -> str:
        """Return what the page says."""
        return " ".join(self.page.inner_text("body").split())


@pytest.fixture
def person(site: str, chromium: Any) -> Iterator[Callable[..., Person]]:
    """A function that brings somebody with these permissions and a browser of their own."""
    contexts = []

    def bring(name: str = "op1", *codenames: str, **options: Any) -> Person:
        context = chromium.new_context(**options)
        context.set_default_timeout(30_000)
        contexts.append(context)
        user, _made = User.objects.get_or_create(username=name, defaults={"is_staff": True})
        held = Permission.objects.filter(content_type__app_label="pgqueue")
        user.user_permissions.set(held.filter(codename__in=codenames) if codenames else held)
        return Person(site, context, user)

    yield bring
    for context in contexts:
        context.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.when == "call" or report.failed or report.skipped:
        for mark in item.iter_markers("acceptance"):
            for name in mark.args:
                _results.setdefault(name, []).append(report.outcome)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _results:
        return
    terminalreporter.section("acceptance items checked in the browser")
    for name in sorted(_results, key=lambda name: int(name[1:])):
        outcomes = _results[name]
        bad = [outcome for outcome in outcomes if outcome != "passed"]
        said = "passed" if not bad else ", ".join(sorted(set(bad)))
        terminalreporter.line(f"{name}: {said} ({len(outcomes)} tests)")
