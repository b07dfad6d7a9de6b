"""The operators' pages in Django's admin: locks, rate limits, parked messages, the audit trail, and the lock panel.

On an admin site of your own: ``site.register(Lock, LockAdmin)``, ``site.register(RateLimit, RateLimitAdmin)``,
``site.register(ParkedMessage, ParkedMessageAdmin)`` and ``site.register(AuditEntry, AuditAdmin)``, with the models from
``django_tasklock.models``.
"""

from __future__ import annotations

from django.contrib import admin

from django_tasklock.admin.audit.admin import AuditAdmin
from django_tasklock.admin.limits.admin import RateLimitAdmin
from django_tasklock.admin.locks.admin import LockAdmin
from django_tasklock.admin.locks.panel import LockPanelMixin
from django_tasklock.admin.parked.admin import ParkedMessageAdmin
from django_tasklock.models import AuditEntry, Lock, ParkedMessage, RateLimit

__all__ = ["AuditAdmin", "LockAdmin", "LockPanelMixin", "ParkedMessageAdmin", "RateLimitAdmin"]

if not admin.site.is_registered(Lock):  # the project may have registered a class of its own
    admin.site.register(Lock, LockAdmin)
if not admin.site.is_registered(RateLimit):
    admin.site.register(RateLimit, RateLimitAdmin)
if not admin.site.is_registered(ParkedMessage):
    admin.site.register(ParkedMessage, ParkedMessageAdmin)
if not admin.site.is_registered(AuditEntry):
    admin.site.register(AuditEntry, AuditAdmin)
