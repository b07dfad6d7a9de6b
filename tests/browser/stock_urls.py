"""The example's addresses, and ``ops/``: an admin site that is not ``django.contrib.admin.site``."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.urls import path

from config.urls import urlpatterns as example
from django_tasklock.admin import LockAdmin
from django_tasklock.models import Lock


class OperatorsSite(AdminSite):
    """Has a name of its own, which every address in it must be reversed with."""

    site_header = "Operators only"


ops = OperatorsSite(name="ops")
ops.register(Lock, LockAdmin)

urlpatterns = [path("ops/", ops.urls), *example]
