from django.contrib import admin

from demo_project.campaign.models import Campaign, Coupon, Credit, Payout, Recipient


@admin.register(Recipient)
class RecipientAdmin(admin.ModelAdmin):
    list_display = ("user_id", "name", "phone")
    search_fields = ("=user_id", "name", "phone")


@admin.register(Campaign)
class CampaignAdmin(admin.ModelAdmin):
    list_display = ("name", "created_at")


class WrittenByTasks(admin.ModelAdmin):
    """Read only: what went out cannot be edited."""

    def has_add_permission(self, request: object) -> bool:
        return False

    def has_change_permission(self, request: object, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: object, obj: object = None) -> bool:
        return False


@admin.register(Coupon)
class CouponAdmin(WrittenByTasks):
    list_display = ("code", "user", "campaign", "sms_message_id", "sent_at")
    list_filter = ("campaign", ("sms_message_id", admin.EmptyFieldListFilter))
    list_select_related = ("user", "campaign")
    search_fields = ("=code", "=user__user_id", "user__name", "sms_message_id")


@admin.register(Payout)
class PayoutAdmin(WrittenByTasks):
    list_display = ("user", "campaign", "account", "cents", "payment_id", "paid_at")
    list_filter = ("campaign", ("payment_id", admin.EmptyFieldListFilter))
    list_select_related = ("user", "campaign")
    search_fields = ("=user__user_id", "user__name", "account", "payment_id")


@admin.register(Credit)
class CreditAdmin(WrittenByTasks):
    list_display = ("user", "campaign", "cents")
    list_filter = ("campaign",)
    list_select_related = ("user", "campaign")
    search_fields = ("=user__user_id", "user__name")
