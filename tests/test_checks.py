"""The checks as a project meets them: in a process of its own, with nothing else set up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import django
import pytest

DJANGO_HAS_TASKS = django.VERSION >= (6, 0)
ROOT = Path(__file__).resolve().parent.parent
MINIMAL = """
import django
SECRET_KEY = "for-this-test-only"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.staticfiles", "pgqueue"]
STATIC_URL = "static/"
STATIC_ROOT = {static!r}
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.postgresql", "NAME": "nowhere", "HOST": "/nonexistent", "USER": "nobody",
}}}}
TASKS = {{"default": {{"BACKEND": "pgqueue.backend.PGQueueBackend"}}}}
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
"""

IMPORT_TASKS = """
if django.VERSION >= (6, 0):
    import django.tasks
"""
"""As whoever has a task does: Django 6 checks its backends only where that was imported."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A function that runs a Django command in a minimal project whose database is down."""

    def run_command(*arguments: str, settings: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "minimal.py").write_text(MINIMAL.format(static=str(tmp_path / "static")) + settings)
        return subprocess.run(
            [sys.executable, "-m", "django", *arguments],
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "minimal",
                "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run_command


@pytest.mark.case("I21")
@pytest.mark.parametrize(
    ("settings", "id"),
    [
        ("PGQUEUE = {'LEASE_SECOND': 1}", "pgqueue.E010"),
        ("DATABASES['default']['ENGINE'] = 'django.db.backends.sqlite3'", "pgqueue.E011"),
        ("TASKS['default']['OPTIONS'] = {'id_function': 'uuid.uuid4'}", "pgqueue.E002"),
        (f"INSTALLED_APPS.remove('pgqueue')\n{IMPORT_TASKS}", "pgqueue.E001"),
    ],
)
def test_a_fault_is_found_where_nothing_of_the_queue_was_imported(run: Run, settings: str, id: str) -> None:
    done = run("check", settings=settings)
    assert done.returncode == 1
    assert id in done.stderr


@pytest.mark.case("I19")
@pytest.mark.parametrize(
    "command",
    [
        ("check",),
        ("check", "--deploy"),
        ("makemigrations", "--check", "--dry-run"),
        ("collectstatic", "--no-input"),
    ],
    ids=" ".join,
)
def test_nothing_that_needs_no_database_asks_for_one(run: Run, command: tuple[str, ...]) -> None:
    """`test_wheel` migrates an empty database."""
    done = run(*command)
    assert done.returncode == 0, done.stderr


CONSOLE = """
INSTALLED_APPS += ["django.contrib." + name for name in ("admin", "auth", "messages", "sessions")]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware", "django.contrib.messages.middleware.MessageMiddleware",
]
"""


@pytest.mark.parametrize("databases", [(), ("--database", "default")], ids=["by the tag", "of a database"])
def test_a_check_that_cannot_ask_the_database_says_nothing(run: Run, databases: tuple[str, ...]) -> None:
    """Django 6.1 asks all databases when checks are named by their tag."""
    done = run("check", "--tag", "pgqueue", *databases, settings=CONSOLE)
    assert (done.returncode, "no issues" in done.stdout) == (0, True), done.stderr


def told(run: Run, database: str) -> str:
    return run("check", "--deploy", settings=f"DATABASES['default'] |= {database}\n").stderr


@pytest.mark.parametrize(
    ("database", "warned"),
    [
        ("{}", False),
        ("{'CONN_MAX_AGE': 0}", False),
        ("{'CONN_MAX_AGE': None}", True),
        ("{'CONN_MAX_AGE': 60}", True),
        ("{'CONN_MAX_AGE': None, 'CONN_HEALTH_CHECKS': True}", False),
    ],
)
def test_connections_that_are_kept_are_to_be_looked_at(run: Run, database: str, warned: bool) -> None:
    assert ("pgqueue.W017" in told(run, database)) == warned


@pytest.mark.parametrize(
    ("database", "warned"),
    [
        ("{'HOST': 'db.internal'}", True),
        ("{'HOST': '', 'OPTIONS': {'host': 'db.internal'}}", True),
        ("{'HOST': 'db.internal', 'OPTIONS': {'keepalives_idle': 5}}", True),
        ("{'HOST': 'db.internal', 'OPTIONS': {'keepalives_idle': 5, 'tcp_user_timeout': 10000}}", False),
        ("{'HOST': '/var/run/postgresql'}", False),
        ("{'HOST': 'localhost'}", False),
    ],
)
def test_a_wait_on_a_cut_network_is_to_be_bounded(run: Run, database: str, warned: bool) -> None:
    assert ("pgqueue.W018" in told(run, database)) == warned


SHOP = """
INSTALLED_APPS.append("shop")
DATABASES["default"]["OPTIONS"] = {"pool": True}
TASKS["default"]["QUEUES"] = []
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """An app of the project whose task module can be written."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    return tmp_path / "shop" / "tasks.py"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("from nowhere import shared_task", "shop.tasks cannot be imported: ModuleNotFoundError: No module named"),
        (
            "from pgqueue import task\n@task(queue_name='dlq')\ndef bury(): pass",
            "Queue 'dlq' is not valid for backend. TASKS['default']['QUEUES'] allows default",
        ),
    ],
    ids=["another package", "no QUEUES"],
)
def test_a_task_module_that_cannot_be_imported_stops_workers_only(run: Run, shop: Path, source: str, said: str) -> None:
    """`runworker` and `check` say which one in a sentence."""
    shop.write_text(source)
    settings = SHOP.replace('TASKS["default"]["QUEUES"] = []', "")
    for command in ("check", "check --deploy"):
        done = run(*command.split(), settings=settings)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("pgqueue.W028") == 1
        assert said in done.stderr
    for name in ("runworker", "pgqueue_worker"):
        done = run(name, settings=settings)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
        assert "Traceback" not in done.stderr


def test_an_app_can_be_left_out(run: Run, shop: Path) -> None:
    shop.write_text("import nowhere")
    settings = SHOP + "PGQUEUE = {'EXCLUDED_TASK_APPS': ['shop', 'shpo']}"
    done = run("check", "--deploy", settings=settings)
    assert (done.returncode, "W028" in done.stderr) == (0, False), done.stderr
    assert "names 'shpo', which is not installed" in done.stderr
    done = run("runworker", settings=settings)
    assert "cannot be reached" in done.stderr


def test_a_view_that_declares_a_task_says_that_the_app_is_not_installed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "views.py").write_text("from pgqueue import task\n@task\ndef job(): pass\nurlpatterns = []\n")
    done = run("check", settings="INSTALLED_APPS.remove('pgqueue')\nROOT_URLCONF = 'views'\n")
    assert done.returncode == 1
    assert "pgqueue is not in INSTALLED_APPS" in done.stderr.splitlines()[-1]


def test_the_other_apps_command_of_that_name_is_told(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "channelled" / "management" / "commands"
    folder.mkdir(parents=True)
    (tmp_path / "channelled" / "__init__.py").touch()
    (folder / "runworker.py").write_text("from django.core.management.base import BaseCommand as Command\n")
    done = run("check", settings="INSTALLED_APPS.insert(0, 'channelled')\n")
    assert "pgqueue, channelled. Now it is that of channelled." in done.stderr
    assert "manage.py pgqueue_worker" in done.stderr
    done = run("check", settings="INSTALLED_APPS.append('channelled')\n")
    assert "Now it is that of pgqueue." in done.stderr


@pytest.mark.skipif(DJANGO_HAS_TASKS, reason="Django 6 needs no backport")
def test_django_52_without_the_backport_says_what_to_install(run: Run) -> None:
    done = run(
        "check", settings="import sys\nsys.modules['django_tasks'] = None\nINSTALLED_APPS.remove('django_tasks')\n"
    )
    assert done.stderr.splitlines()[-1].endswith("Install it with: pip install 'pgqueue[django52]'.")


BACKPORT = """
from django.core.exceptions import ImproperlyConfigured
import django_tasks.exceptions as names
for old in ("InvalidTaskError", "InvalidTaskBackendError"):
    if hasattr(names, old):
        setattr(names, old.removesuffix("Error"), getattr(names, old))
import django_tasks, django_tasks.backends.base, django_tasks.base, django_tasks.signals
for old in ("InvalidTaskError", "InvalidTaskBackendError"):
    vars(names).pop(old, None)
"""


@pytest.mark.skipif(DJANGO_HAS_TASKS, reason="Django 6 needs no backport")
def test_the_backports_next_names_are_its_errors_too(run: Run) -> None:
    """After 0.12 its errors have Django's names, and no others."""
    done = run("check", settings=BACKPORT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("pgqueue_status",),
        ("pgqueue_act", "hold", "1", "--seen=1", "--reason=x", "--actor=ada"),
        ("pgqueue_act", "pause_queue", "mail", "--seen=0", "--reason=x", "--actor=ada"),
        ("pgqueue_prune", "--actor=cron"),
        ("pgqueue_console_groups",),
        ("runworker",),
        ("pgqueue_worker", "--burst"),
    ],
    ids=" ".join,
)
def test_without_a_server_every_command_says_so_in_one_sentence(run: Run, command: tuple[str, ...]) -> None:
    done = run(
        *command, settings="INSTALLED_APPS.append('django.contrib.auth')\nPGQUEUE = {'RETENTION_SECONDS': 604800}\n"
    )
    assert done.returncode == 69
    (line,) = [line for line in done.stderr.splitlines() if "CommandError" in line]
    assert line.startswith("CommandError: Database 'default' cannot be reached: connection")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["pgqueue_status", "runworker"])
def test_a_database_that_is_not_there_is_named(run: Run, name: str) -> None:
    done = run(name, "--database=nope")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "CommandError: There is no database 'nope'; settings.DATABASES has: default."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("hld", "1", "--seen=1"), "argument verb: there is no verb 'hld'. Did you mean 'hold'?"),
        (("hold", "1"), "the following arguments are required: --seen"),
        (("hold", "1", "--seen=1", "--for-seconds=abc"), "argument --for-seconds: 'abc' is no number of seconds"),
    ],
)
def test_an_error_of_usage_begins_with_the_error(run: Run, options: tuple[str, ...], said: str) -> None:
    done = run("pgqueue_act", *options)
    assert done.returncode == 2
    first, then = done.stderr.splitlines()
    assert first.endswith(f"pgqueue_act: {said}")
    assert then.startswith("Try: ")


def test_the_version_of_django_can_be_asked_of_every_command(run: Run) -> None:
    assert run("pgqueue_act", "--version").stdout.strip() == django.get_version()
