"""What stands before every view: who may pass, by which methods, and what is shown when the store is down."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed

from django_tasklock.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from django_tasklock.admin.base import StoreAdmin

__all__ = ["LOOK", "LOOK_AND_ACT", "door"]

LOOK = ("GET", "HEAD")
"""Methods of a view that changes nothing."""
LOOK_AND_ACT = ("GET", "HEAD", "POST")
"""Methods of a view whose POST acts."""
View = TypeVar("View", bound=Callable[..., HttpResponse])


def door(*, methods: tuple[str, ...] = LOOK, release: bool = False) -> Callable[[View], View]:
    """Let in those who may look, and with ``release`` only those who may also act.

    Without permission 403, with another method 405, with the store down 503; nothing of the view has run then,
    except where a store went down in the middle of it.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(admin: StoreAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            may = admin.has_release_permission(request) if release else admin.has_view_permission(request)
            if not may:
                raise PermissionDenied
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            request.current_app = admin.admin_site.name
            try:
                return view(admin, request, *args, **kwargs)
            except BackendUnavailable as error:
                return admin.store_down(request, error)

        return cast(View, guarded)

    return decorate


def is_fragment(request: HttpRequest) -> bool:
    """Whether only the part that changes is asked for, to put it in place of what is shown."""
    return request.GET.get("fragment") == "1"


def unavailable(response: HttpResponse) -> HttpResponse:
    """The same, as an answer that says: try again."""
    response.headers["Retry-After"] = "10"
    return response
