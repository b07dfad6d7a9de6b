"""The lock of a guarded row, on the row's own change page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.forms import Media
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy as _

from django_tasklock import operations
from django_tasklock.admin.base import page_url
from django_tasklock.columns import EPOCH, TOKEN
from django_tasklock.exceptions import BackendUnavailable, TaskLockError
from django_tasklock.guards.rows import state_columns
from django_tasklock.models import Lock
from django_tasklock.operations.guarded_rows import guards_of, lock_name

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = object


class LockPanelMixin(_ModelAdmin):
    """``class VideoAdmin(LockPanelMixin, admin.ModelAdmin)``: shows the row's lock to users who may view locks.

    The panel is a fieldset with only a description, so that it needs no template of its own, and themes style it like
    others. Rendering the page makes one request to the store for each lock of the row.

    What a claim writes, the states of the model's guards and the token, is read-only on the change page and in the
    list, because a form would set it to what it was when the form was shown. A class that wants to edit a state
    overrides ``get_readonly_fields``.
    """

    @property
    def media(self) -> Media:
        """The media with the panel's stylesheet."""
        return super().media + Media(css={"all": ["tasklock/admin.css"]})

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the read-only fields; of an existing row also those that its claim writes."""
        given = super().get_readonly_fields(request, obj)
        return given if obj is None else [*given, *(name for name in claimed_fields(self.model) if name not in given)]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list, in which the fields that a claim writes cannot be edited."""
        fixed = self._fixed(request, self.model())
        vars(self)["list_editable"] = [name for name in self.list_editable if name not in fixed]
        return super().get_changelist_instance(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the row; an existing one without the fields that its claim may have written since it was read."""
        fixed = self._fixed(request, obj)
        if not change or not fixed:
            super().save_model(request, obj, form, change)
            return
        fields = (one for one in obj._meta.concrete_fields if not (one.primary_key or getattr(one, "generated", False)))
        obj.save(update_fields=[one.name for one in fields if one.name not in fixed])

    def _fixed(self, request: HttpRequest, row: Model) -> set[str]:
        return {name for name in claimed_fields(self.model) if name in self.get_readonly_fields(request, row)}

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the fieldsets, and the panel below them."""
        fieldsets = super().get_fieldsets(request, obj)
        user: Any = request.user
        if obj is None or not user.has_perm("tasklock.view_lock"):
            return fieldsets
        panel = (_("Lock"), {"fields": (), "description": _LazyPanel(self.admin_site, request, obj)})
        return [*fieldsets, panel]


class _LazyPanel:
    """The lazily rendered panel, since ``get_fieldsets`` is called more often than a template renders it."""

    def __init__(self, site: admin.AdminSite, request: HttpRequest, row: Model) -> None:
        self.site = site
        self.request = request
        self.row = row

    def __str__(self) -> str:
        names = lock_names(self.row)
        linked = self.site.is_registered(Lock)
        context: dict[str, Any] = {"known": bool(names), "locks": [], "down": False}
        try:
            for name in names:
                url = page_url(self.site, "change", name) if linked else ""
                context["locks"].append((operations.get_lock(name), url))
        except (BackendUnavailable, TaskLockError) as error:
            context["down"] = isinstance(error, BackendUnavailable)
            context["known"] = context["known"] and context["down"]
        return mark_safe(render_to_string("admin/tasklock/panel.html", context, self.request))  # noqa: S308 - escaped


def claimed_fields(model: type[Model]) -> list[str]:
    """Return the editable fields that claims of this model's rows write, also those in the tables of its parents."""
    tables = [model, *model._meta.get_parent_list()]
    written = {TOKEN, EPOCH}.union(*(state_columns(guards_of(table)) for table in tables))
    return [field.name for field in model._meta.concrete_fields if field.editable and field.name in written]


def lock_names(row: Model) -> list[str]:
    """Return the names of the row's locks, as far as they depend on its key alone."""
    names = (lock_name(guarded, row.serializable_value(guarded.lookup)) for guarded in guards_of(type(row)))
    return list(dict.fromkeys(name for name in names if name))
