"""Tasks of the broken shop: mail by a provider that is down, cards that hang, a long export."""

from __future__ import annotations

import os
import socket
import time

from pgqueue import task
from pgqueue.context import JobContext

ADDRESS = ("127.0.0.1", int(os.environ.get("SHOP_PROVIDER_PORT", "9")))
HANGS_SECONDS = 3600
EXPORT_SECONDS = 20
"""Long enough to be frozen in."""


class MailProviderDownError(ConnectionError):
    """The mail provider refuses connections."""


@task(queue_name="emails", recovery="idempotent", max_attempts=1)
def send_mail(order: int) -> None:
    """Send an order's confirmation."""
    try:
        socket.create_connection(ADDRESS, timeout=2).close()
    except OSError as error:
        raise MailProviderDownError(f"mail provider {ADDRESS[0]}:{ADDRESS[1]} refuses connections") from error


@task(queue_name="payments", recovery="manual", takes_context=True)
def charge_card(context: JobContext, order: int) -> None:
    """Charge an order. The first worker is killed while the provider has not answered yet."""
    context.effect("charge", lambda key: {"id": f"ch_{order}"} if os.environ.get("SHOP_ANSWERS") else _hang())


@task(queue_name="reports", recovery="idempotent")
def export_orders(day: str) -> None:
    """Write a day's orders to the warehouse, slowly."""
    time.sleep(EXPORT_SECONDS)


def _hang() -> dict[str, str]:
    time.sleep(HANGS_SECONDS)
    return {}
