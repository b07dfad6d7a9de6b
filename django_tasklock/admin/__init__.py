"""The operators' pages in Django's admin: live locks, rate limits, and a panel on the pages of guarded rows.

On an admin site of your own: ``site.register(Lock, LockAdmin)`` and ``site.register(RateLimit, RateLimitAdmin)``, with
``Lock`` and ``RateLimit`` from ``django_tasklock.models``.
"""

from __future__ import annotations

from django.contrib import admin

from django_tasklock.admin.limits import RateLimitAdmin
from django_tasklock.admin.locks import LockAdmin
from django_tasklock.admin.panel import LockPanelMixin
from django_tasklock.models import Lock, RateLimit

__all__ = ["LockAdmin", "LockPanelMixin", "RateLimitAdmin"]

if not admin.site.is_registered(Lock):  # a project may have been first, with a class of its own
    admin.site.register(Lock, LockAdmin)
if not admin.site.is_registered(RateLimit):
    admin.site.register(RateLimit, RateLimitAdmin)
