"""Who gets what: recipients, campaigns, one coupon for each pair of them, and money back for some."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Recipient(models.Model):
    user_id = models.BigIntegerField(primary_key=True)
    name = models.CharField(max_length=100)
    phone = models.CharField(max_length=16)

    def __str__(self) -> str:
        return f"{self.name} ({self.user_id})"


class Campaign(models.Model):
    name = models.CharField(max_length=100, unique=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.name


class Coupon(models.Model):
    """`sms_message_id` is the provider's; null until the message is known to have gone out."""

    user = models.ForeignKey(Recipient, on_delete=models.PROTECT, related_name="coupons")
    campaign = models.ForeignKey(Campaign, on_delete=models.PROTECT, related_name="coupons")
    code = models.CharField(max_length=16, unique=True)
    sms_message_id = models.CharField(max_length=64, null=True)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("user", "campaign"), name="campaign_one_coupon_per_user"),)

    def __str__(self) -> str:
        return self.code

    @property
    def text(self) -> str:
        """What the message says; the same at every attempt, because it depends on stored columns only."""
        return f"Hello {self.user.name}, your coupon for {self.campaign.name}: {self.code}"

    def mark_sent(self, message_id: str) -> None:
        """Store the provider's message id, unless one is stored already: the first one stays."""
        unsent = Coupon.objects.filter(pk=self.pk, sms_message_id=None)
        unsent.update(sms_message_id=message_id, sent_at=Now())


class Payout(models.Model):
    """Money back by way of the provider. `payment_id` is the provider's; null until it is known to be paid."""

    user = models.ForeignKey(Recipient, on_delete=models.PROTECT, related_name="payouts")
    campaign = models.ForeignKey(Campaign, on_delete=models.PROTECT, related_name="payouts")
    account = models.CharField(max_length=40)
    cents = models.PositiveIntegerField()
    payment_id = models.CharField(max_length=64, null=True)
    paid_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("user", "campaign"), name="campaign_one_payout_per_user"),)

    def __str__(self) -> str:
        return f"{self.cents} cents to {self.account}"

    def mark_paid(self, payment_id: str) -> None:
        """Store the provider's id of the payment."""
        Payout.objects.filter(pk=self.pk).update(payment_id=payment_id, paid_at=Now())


class Credit(models.Model):
    """Money back as credit in the shop. No constraint keeps a second one out: its task has to."""

    user = models.ForeignKey(Recipient, on_delete=models.PROTECT, related_name="credits")
    campaign = models.ForeignKey(Campaign, on_delete=models.PROTECT, related_name="credits")
    cents = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.cents} cents"
