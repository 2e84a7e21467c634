"""The campaign's one task."""

from __future__ import annotations

import secrets

from demo_project.campaign import gateway
from demo_project.campaign.models import Coupon, Recipient
from pgqueue import Bury, Retry, task
from pgqueue.context import JobContext


@task(queue_name="sms", recovery="idempotent", max_attempts=8, backoff_seconds=1, takes_context=True)
def send_coupon(context: JobContext, user_id: int, campaign_id: int) -> None:
    """Issue the recipient's coupon and send it.

    Safe to repeat: the coupon is unique in this database, and the provider gets the same idempotency key at
    every attempt. A failure that is neither of the two below is retried with the queue's backoff.
    """
    coupon = issue_once(user_id, campaign_id)
    if coupon.sms_message_id is not None:
        return
    try:
        message_id = gateway.send(
            coupon.user.phone,
            coupon.text,
            idempotency_key=f"{context.operation_key}:sms",
            fence=context.fence,
        )
    except gateway.ThrottledError as error:
        raise Retry(str(error), after_seconds=error.retry_after_seconds) from error
    except gateway.RefusedError as error:
        raise Bury(str(error)) from error
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
