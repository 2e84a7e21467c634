"""Django's settings for the tests. `tests.embedded` has set DATABASE_URL before they are read."""

import json
import os

import django
import environ

DATABASES = {"default": environ.Env.db_url_config(os.environ["DATABASE_URL"])}
# One database per run, so that two runs can share a server; xdist adds a suffix per worker.
DATABASES["default"]["TEST"] = {
    "NAME": f"test_{DATABASES['default']['NAME']}_{os.environ.get('PGQUEUE_TEST_RUN', 'run')}",
}

SECRET_KEY = "for-tests-only"
ALLOWED_HOSTS = ["testserver", "localhost"]

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
    "tests.testapp",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
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

# Worker processes that tests start get their settings from the environment.
DEBUG = os.environ.get("PGQUEUE_TEST_DEBUG") == "1"
PGQUEUE = json.loads(os.environ.get("PGQUEUE_TEST_SETTINGS", "{}"))
LOGGING = json.loads(os.environ.get("PGQUEUE_TEST_LOGGING", "{}"))
TASKS = {"default": {"BACKEND": "pgqueue.backend.PGQueueBackend", "QUEUES": []}}

ROOT_URLCONF = "demo_project.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
USE_TZ = True
TIME_ZONE = "UTC"
