"""The operators' pages in Django's admin: live locks, rate limits, parked messages, and a panel on guarded rows' pages.

On an admin site of your own: ``site.register(Lock, LockAdmin)``, ``site.register(RateLimit, RateLimitAdmin)`` and
``site.register(ParkedMessage, ParkedMessageAdmin)``, with the models from ``django_tasklock.models``.
"""

from __future__ import annotations

from django.contrib import admin

from django_tasklock.admin.limits.admin import RateLimitAdmin
from django_tasklock.admin.locks.admin import LockAdmin
from django_tasklock.admin.locks.panel import LockPanelMixin
from django_tasklock.admin.parked import ParkedMessageAdmin
from django_tasklock.models import Lock, ParkedMessage, RateLimit

__all__ = ["LockAdmin", "LockPanelMixin", "ParkedMessageAdmin", "RateLimitAdmin"]

if not admin.site.is_registered(Lock):  # a project may have been first, with a class of its own
    admin.site.register(Lock, LockAdmin)
if not admin.site.is_registered(RateLimit):
    admin.site.register(RateLimit, RateLimitAdmin)
if not admin.site.is_registered(ParkedMessage):
    admin.site.register(ParkedMessage, ParkedMessageAdmin)
