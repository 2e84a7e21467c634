from __future__ import annotations

import secrets

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand

NAME = "demo"


class Command(BaseCommand):
    help = f"Create the superuser {NAME!r} or give it a new password; prints name and password."

    def handle(self, **options: object) -> str:
        password = secrets.token_urlsafe(9)
        user, _ = get_user_model().objects.get_or_create(username=NAME)
        user.is_staff = user.is_superuser = user.is_active = True
        user.set_password(password)
        user.save()
        return f"{NAME} {password}"
