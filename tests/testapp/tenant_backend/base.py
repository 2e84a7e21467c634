"""A subclassed wrapper with state of its own: a tenant that each cursor sets, and maybe a schema."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import base
from psycopg.pq import TransactionStatus


class DatabaseWrapper(base.DatabaseWrapper):
    """Acts for `tenant`, and in `schema` where there is one, whatever the session was set to before."""

    tenant = "nobody"
    schema: str | None = None

    def create_cursor(self, name: str | None = None) -> Any:
        """Return a cursor in a session that acts for the tenant."""
        if self.connection.info.transaction_status != TransactionStatus.INERROR:
            with self.connection.cursor() as setting:
                setting.execute("SELECT set_config('app.tenant', %s, false)", [self.tenant])
                if self.schema is not None:
                    setting.execute("SELECT set_config('search_path', %s, false)", [f"{self.schema}, public"])
        return super().create_cursor(name)
