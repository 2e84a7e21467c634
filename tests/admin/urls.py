"""The console on other sites: one that shows all of it, one that shows jobs alone."""

from django.contrib import admin
from django.urls import path

from pgqueue.admin import ApprovalRequestAdmin, JobAdmin, LimitAdmin, OperatorActionAdmin, QueueAdmin, WorkerAdmin
from pgqueue.models import ApprovalRequest, Job, Limit, OperatorAction, Queue, Worker

office = admin.AdminSite(name="office")
office.register(Job, JobAdmin)
office.register(Queue, QueueAdmin)
office.register(Limit, LimitAdmin)
office.register(ApprovalRequest, ApprovalRequestAdmin)
office.register(Worker, WorkerAdmin)
office.register(OperatorAction, OperatorActionAdmin)

narrow = admin.AdminSite(name="narrow")
narrow.register(Job, JobAdmin)

urlpatterns = [path("back/office/", office.urls), path("narrow/", narrow.urls)]
