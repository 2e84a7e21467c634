"""Settings of the demo site, for this machine only: debug pages, and a key that everyone can read."""

import os
from pathlib import Path

import django
import environ
from django.core.exceptions import ImproperlyConfigured

PROJECT = Path(__file__).resolve().parent.parent

if not os.environ.get("DATABASE_URL"):
    raise ImproperlyConfigured(
        "DATABASE_URL is not set. `make demo` starts a PostgreSQL and the site; for a single command use"
        " `python -m demo_project.postgres --run python manage.py ...`; or point DATABASE_URL at a server of"
        " yours: postgresql://user:password@host/database."
    )

DATABASES = {"default": environ.Env.db_url_config(os.environ["DATABASE_URL"])}
if DATABASES["default"]["ENGINE"] != "django.db.backends.postgresql":
    raise ImproperlyConfigured("DATABASE_URL must name a PostgreSQL: postgresql://user:password@host/database.")

SECRET_KEY = os.environ.get("SECRET_KEY", "for-the-demo-on-this-machine-only")
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    *(["django_tasks"] if django.VERSION < (6, 0) else []),
    "pgqueue",
    "demo_project.campaign",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [PROJECT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

TASKS = {"default": {"BACKEND": "pgqueue.backend.PGQueueBackend", "QUEUES": []}}

ROOT_URLCONF = "demo_project.urls"
WSGI_APPLICATION = "demo_project.wsgi.application"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
