from django.contrib import admin

from demo_project.campaign.models import Campaign, Coupon, Recipient


@admin.register(Recipient)
class RecipientAdmin(admin.ModelAdmin):
    list_display = ("user_id", "name", "phone")
    search_fields = ("=user_id", "name", "phone")


@admin.register(Campaign)
class CampaignAdmin(admin.ModelAdmin):
    list_display = ("name", "created_at")


@admin.register(Coupon)
class CouponAdmin(admin.ModelAdmin):
    """Read only: coupons are issued by the task, and a message that went out cannot be edited."""

    list_display = ("code", "user", "campaign", "sms_message_id", "sent_at")
    list_filter = ("campaign", ("sms_message_id", admin.EmptyFieldListFilter))
    list_select_related = ("user", "campaign")
    search_fields = ("=code", "=user__user_id", "user__name", "sms_message_id")

    def has_add_permission(self, request: object) -> bool:
        return False

    def has_change_permission(self, request: object, obj: Coupon | None = None) -> bool:
        return False

    def has_delete_permission(self, request: object, obj: Coupon | None = None) -> bool:
        return False
