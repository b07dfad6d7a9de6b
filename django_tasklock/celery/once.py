"""A ``OnceTask`` with the options of one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery.canvas import Signature

from django_tasklock.celery import options

if TYPE_CHECKING:
    from celery.result import AsyncResult


class Once:
    """A task with the options of one call, as ``OnceTask.once()`` returns it."""

    def __init__(self, task: Any, overrides: Mapping[str, Any]) -> None:
        self.task = task
        self.overrides = dict(overrides)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Publish the task."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **sending: Any) -> AsyncResult[Any]:
        """Publish the task, with Celery's options."""
        return self.task.apply_async(args, kwargs, once=self.overrides, **sending)  # type: ignore[no-any-return]

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Publish the task when the database transaction is committed."""
        self.task.apply_async_on_commit(args, kwargs, once=self.overrides)

    def apply_async_on_commit(self, args: Any = None, kwargs: Any = None, **sending: Any) -> None:
        """Publish the task, with Celery's options, when the database transaction is committed."""
        self.task.apply_async_on_commit(args, kwargs, once=self.overrides, **sending)

    def apply(self, args: Any = None, kwargs: Any = None, **sending: Any) -> Any:
        """Run the task here and now."""
        return self.task.apply(args, kwargs, once=self.overrides, **sending)

    def s(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return a signature, for chains, groups and chords."""
        return self.task.s(*args, **kwargs).set(once=options.serializable(self.overrides))  # type: ignore[no-any-return]

    def si(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return an immutable signature."""
        return self.task.si(*args, **kwargs).set(once=options.serializable(self.overrides))  # type: ignore[no-any-return]
