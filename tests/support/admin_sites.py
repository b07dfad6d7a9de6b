"""A second admin site, as projects have them: its own class, its own name, its own registrations."""

from __future__ import annotations

from django.contrib import admin

from django_tasklock.admin import AuditAdmin, LockAdmin, LockPanelMixin, ParkedMessageAdmin, RateLimitAdmin, SweepAdmin
from django_tasklock.models import AuditEntry, Lock, ParkedMessage, RateLimit, SweepEntry
from tests.testapp.models import Track, Video

__all__ = ["OperatorsSite", "VideoAdmin", "operators"]


class OperatorsSite(admin.AdminSite):
    """Not the default one."""

    site_header = "Operators"


class VideoAdmin(LockPanelMixin, admin.ModelAdmin):
    """A guarded model's page, with the panel."""

    list_display = ("pk", "status")
    list_editable = ("status",)


operators = OperatorsSite(name="operators")
operators.register(Lock, LockAdmin)
operators.register(RateLimit, RateLimitAdmin)
operators.register(ParkedMessage, ParkedMessageAdmin)
operators.register(AuditEntry, AuditAdmin)
operators.register(SweepEntry, SweepAdmin)
operators.register([Track, Video], VideoAdmin)
