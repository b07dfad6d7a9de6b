"""The operators' pages in Django's admin: locks, rate limits, messages, the audit trail, sweeps, and the lock panel.

On an admin site of your own: ``site.register(Lock, LockAdmin)``, ``site.register(RateLimit, RateLimitAdmin)``,
``site.register(ParkedMessage, ParkedMessageAdmin)``, ``site.register(AuditEntry, AuditAdmin)`` and
``site.register(SweepEntry, SweepAdmin)``, with the models from ``django_tasklock.models``.
"""

from __future__ import annotations

from django.contrib import admin

from django_tasklock.admin.limits.admin import RateLimitAdmin
from django_tasklock.admin.locks.admin import LockAdmin
from django_tasklock.admin.locks.panel import LockPanelMixin
from django_tasklock.admin.tables import AuditAdmin, ParkedMessageAdmin, SweepAdmin
from django_tasklock.models import AuditEntry, Lock, ParkedMessage, RateLimit, SweepEntry

__all__ = ["AuditAdmin", "LockAdmin", "LockPanelMixin", "ParkedMessageAdmin", "RateLimitAdmin", "SweepAdmin"]

for model, model_admin in (
    (Lock, LockAdmin),
    (RateLimit, RateLimitAdmin),
    (ParkedMessage, ParkedMessageAdmin),
    (AuditEntry, AuditAdmin),
    (SweepEntry, SweepAdmin),
):
    if not admin.site.is_registered(model):  # the project may have registered a class of its own
        admin.site.register(model, model_admin)
