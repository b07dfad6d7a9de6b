"""What a worker and the test that started it must agree on; it travels as JSON in the environment."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Self

from celery import Celery

__all__ = ["ENVIRONMENT", "READY", "Configuration"]

ENVIRONMENT = "TASKLOCK_SITE"
"""Set by the test: the configuration of the worker that is started."""
READY = "TASKLOCK_SITE_READY"
"""Set by the test: the file that a worker makes once it takes messages."""

# What was not acknowledged in time comes back when a worker looks for it; by itself it does so every 100 seconds, and
# not for another 300 after one was killed while it looked.
_LOOK_OFTEN = {"unacked_restore_interval": 0.5, "unacked_restore_throttle": 1, "unacked_mutex_expire": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration:
    """Where everything is, and what differs from Celery's and the package's own defaults."""

    name: str
    """Of this site alone: of its queue, and in front of everything else it makes in the broker."""
    broker: str
    results: str
    tasks: tuple[str, ...]
    """Modules with tasks, declared with ``shared_task``."""
    celery: dict[str, Any] = dataclasses.field(default_factory=dict)
    tasklock: dict[str, Any] = dataclasses.field(default_factory=dict)

    def with_options(self, **options: Any) -> Self:
        """A copy with other options; ``lease``, ``timeout`` and ``visibility_timeout`` are named as people do."""
        celery, tasklock = dict(self.celery), dict(self.tasklock)
        for option in ("lease", "timeout"):
            if option in options:
                tasklock[option.upper()] = options.pop(option)
        tasklock.update(options.pop("tasklock", {}))
        tasks = (*self.tasks, *options.pop("tasks", ()))
        if "visibility_timeout" in options:
            transport = {**_LOOK_OFTEN, "visibility_timeout": options.pop("visibility_timeout")}
            celery["broker_transport_options"] = {**celery.get("broker_transport_options", {}), **transport}
        celery.update(options)
        return dataclasses.replace(self, celery=celery, tasklock=tasklock, tasks=tuple(dict.fromkeys(tasks)))

    def as_json(self) -> str:
        """For the environment of a worker."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def here(cls) -> Self:
        """That of this worker process."""
        given = json.loads(os.environ[ENVIRONMENT])
        return cls(**{**given, "tasks": tuple(given["tasks"])})

    def conf(self) -> dict[str, Any]:
        """Celery's settings."""
        return {
            "broker_url": self.broker,
            "result_backend": self.results,
            "imports": self.tasks,
            "task_default_queue": self.name,
            # One broker may serve several runs at once: whatever has a name there has one of its own.
            "control_exchange": self.name,
            "event_exchange": f"{self.name}.events",
            "event_queue_prefix": self.name,
            "worker_prefetch_multiplier": 1,
            "broker_connection_retry_on_startup": True,
            # A child that is not up within 4 s is killed by billiard, and so is the next: on a busy machine, all.
            "worker_proc_alive_timeout": 60.0,
            **self.celery,
        }

    def make_app(self) -> Celery:
        """The app, which becomes the current one: of a worker process, or for the time of a test."""
        app = Celery(self.name, set_as_current=True)
        app.conf.update(self.conf())
        return app
