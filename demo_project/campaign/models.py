"""Who gets what: recipients, campaigns, and one coupon for each pair of them."""

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
