"""Addresses of our pages, on whichever admin site, and of guarded rows."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote, unquote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from django_tasklock.models import Lock
from django_tasklock.operations.values import RowRef

__all__ = ["address", "quoted", "row_address", "unquoted"]


def quoted(name: str) -> str:
    """A lock's name as a part of a path: ``order:1/x`` is one part."""
    text: str = quote(name)
    # Browsers take "." and ".." for directories, however they are written. "_2E" is nothing that quote() makes.
    return text.replace(".", "_2E") if name.strip(".") == "" else text


def unquoted(text: str) -> str:
    """The name that ``quoted`` made this of."""
    return str(unquote(text.replace("_2E", ".")))


def address(site: AdminSite, page: str, name: str | None = None, model: type[Model] = Lock) -> str:
    """The path of ``page`` (``changelist``, ``change``, ``release``...), of one lock or limiter if it has one."""
    args = () if name is None else (quoted(name),)
    return reverse(f"admin:tasklock_{model._meta.model_name}_{page}", args=args, current_app=site.name)


def row_address(site: AdminSite, request: HttpRequest, ref: RowRef) -> str:
    """The change page of a guarded row; empty if this site has none, or the user may not see it."""
    try:
        model: Any = apps.get_model(ref.model)
    except (LookupError, ValueError):
        return ""
    row_admin = site._registry.get(model)
    if row_admin is None or not row_admin.has_view_or_change_permission(request):
        return ""
    try:
        page = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
        return reverse(page, args=(quote(ref.pk),), current_app=site.name)
    except NoReverseMatch:
        return ""
