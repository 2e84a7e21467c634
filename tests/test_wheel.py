"""What is published: the wheel holds all that the package needs, and works in an empty project."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from psycopg import sql

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]

SETTINGS = """
SECRET_KEY = "for-this-test-only"
INSTALLED_APPS = ["pgqueue", "shop"]
DATABASES = {{"default": {database!r}}}
TASKS = {{"default": {{"BACKEND": "pgqueue.backend.PGQueueBackend", "QUEUES": []}}}}
"""
TASKS = """
from pgqueue import task

@task
def add(left, right):
    return left + right
"""
ENQUEUE = "import django; django.setup(); from shop.tasks import add; print(add.enqueue(20, right=22).id)"
READ = "import django; django.setup(); from shop.tasks import add; print(add.get_result('{id}').return_value)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built from this tree."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    _run([*PIP, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)], folder)
    (built,) = folder.glob("*.whl")
    return built


def _run(command: list[str], folder: Path) -> str:
    """Run a command that sees nothing of this tree; return what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DATABASE_URL")}
    environment = {**kept, "DJANGO_SETTINGS_MODULE": "site_settings"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def database() -> Iterator[dict[str, object]]:
    """The settings of an empty database of its own."""
    given = settings.DATABASES["default"]
    name = f"test_wheel_{uuid.uuid4().hex}"
    server = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    names = ("USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    yield {"ENGINE": "django.db.backends.postgresql", "NAME": name, **{key: given[key] for key in names}}
    server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    server.close()


@pytest.fixture
def run_python(wheel: Path, database: dict[str, object], tmp_path: Path) -> Callable[..., str]:
    """A function that runs Python in an empty project, where pgqueue is the wheel's."""
    _run([sys.executable, "-m", "venv", "--without-pip", "environment"], tmp_path)
    python = tmp_path / "environment" / "bin" / "python"
    _run([*PIP, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], tmp_path)
    # Django and the driver are those of this environment; what is installed in place there is not seen so.
    (site_packages,) = (tmp_path / "environment" / "lib").glob("*/site-packages")
    (site_packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "site_settings.py").write_text(SETTINGS.format(database=database))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(TASKS)
    return lambda *arguments: _run([str(python), "-W", "error", *arguments], tmp_path)


def test_an_empty_project_migrates_enqueues_and_works(run_python: Callable[..., str], tmp_path: Path) -> None:
    assert str(tmp_path) in run_python("-c", "import pgqueue; print(pgqueue.__file__)")
    assert "no issues" in run_python("-m", "django", "check")
    run_python("-m", "django", "migrate", "--verbosity", "0")
    run_python("-m", "django", "makemigrations", "--check", "--dry-run")
    id = run_python("-c", ENQUEUE)
    run_python("-m", "django", "runworker", "--burst")
    assert run_python("-c", READ.format(id=id)) == "42"


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    needed = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pgqueue").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".pyi") and not path.name.startswith(".")
    }
    assert names == needed
    assert {Path(name).suffix for name in names} >= {".py", ".sql", ".typed", ".html"}
    assert {f"pgqueue/sql/{path.name}" for path in (ROOT / "pgqueue" / "sql").glob("*.sql")} <= names


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    text = archive.read(metadata).decode()
    assert "Name: pgqueue\n" in text
    assert "Requires-Dist: django>=5.2\n" in text
    assert "License-File: LICENSE\n" in text
