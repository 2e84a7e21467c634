from django.apps import AppConfig


class CampaignConfig(AppConfig):
    name = "demo_project.campaign"
    default_auto_field = "django.db.models.BigAutoField"
