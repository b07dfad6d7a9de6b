"""The operators' pages in Django's admin: live locks, and a panel on the pages of guarded rows.

On an admin site of your own: ``site.register(Lock, LockAdmin)``, with ``Lock`` from ``django_tasklock.models``.
"""

from __future__ import annotations

from django.contrib import admin

from django_tasklock.admin.locks import LockAdmin
from django_tasklock.admin.panel import LockPanelMixin
from django_tasklock.models import Lock

__all__ = ["LockAdmin", "LockPanelMixin"]

if not admin.site.is_registered(Lock):  # a project may have been first, with a class of its own
    admin.site.register(Lock, LockAdmin)
