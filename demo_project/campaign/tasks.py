"""The campaign's tasks: a coupon by SMS, and money back, with one task for each recovery policy."""

from __future__ import annotations

import os
import secrets
from typing import Any

from demo_project.campaign import gateway
from demo_project.campaign.models import Coupon, Credit, Payout, Recipient
from pgqueue import Bury, DidNotHappen, Happened, Retry, task
from pgqueue.context import JobContext

PROVIDER_KEEPS_KEYS = os.environ.get("PROVIDER_KEEPS_KEYS", "1") == "1"
"""Whether the provider does what it was asked for once per idempotency key."""
REPLAYED = "idempotent" if PROVIDER_KEEPS_KEYS else "probe"
"""How calls recover that are repeated under their key: not blindly, where the provider forgets keys."""
CALL_DEADLINE_SECONDS = gateway.TIMEOUT_SECONDS + 1.0
"""After this, a request that the provider does not know of does not arrive any more."""
PAYOUT: dict[str, Any] = {
    "queue_name": "payouts",
    "max_attempts": 8,
    "backoff_seconds": 1,
    "call_deadline_seconds": CALL_DEADLINE_SECONDS,
}


@task(
    queue_name="sms",
    recovery=REPLAYED,
    max_attempts=8,
    backoff_seconds=1,
    call_deadline_seconds=CALL_DEADLINE_SECONDS,
    takes_context=True,
)
def send_coupon(context: JobContext, user_id: int, campaign_id: int) -> None:
    """Issue the recipient's coupon and send it.

    Safe to repeat: the coupon is unique in this database, and the provider gets the same idempotency key at
    every attempt. A failure that is neither of the two below leaves the outcome unknown.
    """
    coupon = issue_once(user_id, campaign_id)
    try:
        message_id = context.effect(
            "sms",
            lambda key: gateway.send(coupon.user.phone, coupon.text, idempotency_key=key, fence=context.fence),
            did_not_happen=(gateway.ThrottledError, gateway.RefusedError),
        )
    except gateway.ThrottledError as error:
        raise Retry(str(error), after_seconds=error.retry_after_seconds) from error
    except gateway.RefusedError as error:
        raise Bury(str(error)) from error
    with context.confirming("sms"):
        coupon.mark_sent(message_id)


def issue_once(user_id: int, campaign_id: int) -> Coupon:
    """Return the recipient's coupon, issued now or before; raise Recipient.DoesNotExist for an unknown user.

    Two workers at once: the unique constraint lets one insert, `get_or_create` gives the other the same row.
    """
    recipient = Recipient.objects.get(pk=user_id)
    coupon, _ = Coupon.objects.select_related("user", "campaign").get_or_create(
        user=recipient,
        campaign_id=campaign_id,
        defaults={"code": secrets.token_hex(5).upper()},
    )
    return coupon


@task(recovery="transactional", takes_context=True, **PAYOUT)
def give_credit(context: JobContext, user_id: int, campaign_id: int, cents: int, account: str) -> None:
    """Give credit in the shop: a row of this database, there if and only if the job has succeeded."""
    Credit.objects.create(user_id=user_id, campaign_id=campaign_id, cents=cents)
    gateway.check(account, key=f"{context.operation_key}:check", fence=context.fence)


@task(recovery=REPLAYED, takes_context=True, **PAYOUT)
def pay_again(context: JobContext, payout_id: int) -> None:
    """Pay; when the outcome is unknown, pay again under the same key."""
    pay(context, payout_id)


@task(recovery="probe", takes_context=True, **PAYOUT)
def pay_and_ask(context: JobContext, payout_id: int) -> None:
    """Pay; when the outcome is unknown, ask the provider."""
    pay(context, payout_id)


@task(recovery="manual", takes_context=True, **PAYOUT)
def pay_by_hand(context: JobContext, payout_id: int) -> None:
    """Pay; when the outcome is unknown, a person finds out."""
    pay(context, payout_id)


def pay(context: JobContext, payout_id: int) -> None:
    payout = Payout.objects.get(pk=payout_id)
    payment_id = context.effect(
        "pay",
        lambda key: gateway.pay(payout.account, payout.cents, idempotency_key=key, fence=context.fence),
        did_not_happen=(gateway.ThrottledError, gateway.RefusedError),
    )
    with context.confirming("pay"):
        payout.mark_paid(payment_id)


def find_message(context: Any, effect: Any) -> Any:
    return _found(gateway.find("messages", effect.key))


@pay_and_ask.probe
def find_payment(context: Any, effect: Any) -> Any:
    return _found(gateway.find("payments", effect.key))


def _found(done: str | None) -> Any:
    return DidNotHappen() if done is None else Happened(done)


if not PROVIDER_KEEPS_KEYS:
    send_coupon.probe(find_message)
    pay_again.probe(find_payment)
