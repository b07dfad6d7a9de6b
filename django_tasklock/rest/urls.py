"""The URLs of the API, for ``include()``. Without trailing slashes; names may contain slashes, colons, any script."""

from __future__ import annotations

from django.urls import path, register_converter

from django_tasklock.rest.limits.views import (
    ChangeLimitView,
    LimitsView,
    LimitView,
    PauseLimitView,
    PermitsListView,
    PermitsView,
    ReleasePermitView,
    ResetLimitView,
    ResumeLimitView,
)
from django_tasklock.rest.locks.views import AskReleaseView, LocksView, LockView, ReleaseLockView, WaitersView
from django_tasklock.rest.parked.views import (
    DiscardMessageView,
    MessagesView,
    MessageView,
    PublishMessageView,
    RequeueMessageView,
)
from django_tasklock.rest.records.views import AuditView, RunsView, RunView, SweepView


class NameConverter:
    """Matches everything between the prefix and the last part, even line breaks, which the view refuses with JSON."""

    regex = "(?s:.+)"

    def to_python(self, value: str) -> str:
        """Return the value unchanged."""
        return value

    def to_url(self, value: str) -> str:
        """Return the value unchanged; ``reverse`` escapes it."""
        return value


register_converter(NameConverter, "tasklock_name")

app_name = "tasklock"
"""The namespace: ``reverse("tasklock:locks")``."""
urlpatterns = [
    path("locks", LocksView.as_view(), name="locks"),
    path("<tasklock_name:name>/lock", LockView.as_view(), name="lock"),
    path("<tasklock_name:name>/release-lock", ReleaseLockView.as_view(), name="release-lock"),
    path("<tasklock_name:name>/ask-release", AskReleaseView.as_view(), name="ask-release"),
    path("<tasklock_name:name>/waiters", WaitersView.as_view(), name="waiters"),
    # After those of locks, as a lock may be called "limits/x"; no URL here ends like one of a lock.
    path("limits", LimitsView.as_view(), name="limits"),
    path("limits/<tasklock_name:name>/reset", ResetLimitView.as_view(), name="reset-limit"),
    path("limits/<tasklock_name:name>/change", ChangeLimitView.as_view(), name="change-limit"),
    path("limits/<tasklock_name:name>/pause", PauseLimitView.as_view(), name="pause-limit"),
    path("limits/<tasklock_name:name>/resume", ResumeLimitView.as_view(), name="resume-limit"),
    path("limits/<tasklock_name:name>", LimitView.as_view(), name="limit"),
    path("concurrency", PermitsListView.as_view(), name="concurrency"),
    path("concurrency/<tasklock_name:name>/release", ReleasePermitView.as_view(), name="release-permit"),
    path("concurrency/<tasklock_name:name>", PermitsView.as_view(), name="permits"),
    path("parked", MessagesView.as_view(), name="parked"),
    path("parked/<tasklock_name:task_id>/requeue", RequeueMessageView.as_view(), name="requeue-parked"),
    path("parked/<tasklock_name:task_id>/publish", PublishMessageView.as_view(), name="publish-parked"),
    path("parked/<tasklock_name:task_id>/discard", DiscardMessageView.as_view(), name="discard-parked"),
    path("parked/<tasklock_name:task_id>", MessageView.as_view(), name="parked-message"),
    path("sweep", SweepView.as_view(), name="sweep"),
    path("sweeps", RunsView.as_view(), name="sweeps"),
    path("sweeps/<tasklock_name:number>", RunView.as_view(), name="sweep-run"),
    path("audit", AuditView.as_view(), name="audit"),
]
"""The URL patterns."""
