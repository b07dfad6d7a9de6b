"""A sweep in a process of its own, which may kill itself on the way: ``python -m tests.support.sweeper``.

Its standard input is a JSON object: ``options`` of ``sweep()``, ``tasks`` whose guards count, and ``kill``, the step at
which the process ends as if by ``kill -9``. It answers with its report.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["STEPS", "only", "start"]

STEPS = {
    "marked": "stream.sleep",
    "before the lock": "locks.delete_if_held",
    "after the lock": "locks.delete_if_held",
    "before publishing": "requeue.Publisher.publish",
    "after publishing": "requeue.Publisher.publish",
    "put back": "restoring.RowRestorer.restore",
    "holding": "restoring.revoke_claim",
    "before the audit": "report.record_acts",
}
"""Where each step is; those that begin with "before" come before that function does anything, as "marked" does."""


def only(tasks: Sequence[str]) -> None:
    """No guards but those of these tasks are registered."""
    from celery import current_app

    from django_tasklock.guards import guard as guards

    where = "tests.support.celery_site."
    known = [current_app.tasks[f"{where}{'' if '.' in task else 'sweep_tasks.'}{task}"] for task in tasks]
    locks = [getattr(task.run, "lock", type(task)) for task in known]
    guards.replace_registered([one for one in guards.registered() if any(one.locked is lock for lock in locks)])


def start(environment: dict[str, str], **asked: Any) -> subprocess.Popen[str]:
    """Start one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.sweeper"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.support.celery_site.settings", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked))
    process.stdin.close()
    process.stdin = None  # ``communicate`` would flush it
    return process


def _die_at(step: str) -> None:
    from django_tasklock.celery import republish as requeue
    from django_tasklock.operations.sweep import locks, report, restoring, stream

    modules = {
        "locks": locks,
        "report": report,
        "requeue": requeue,
        "restoring": restoring,
        "stream": stream,
    }
    module_name, *inner, name = STEPS[step].split(".")
    target: Any = modules[module_name]
    for part in inner:
        target = getattr(target, part)
    original = getattr(target, name)

    def struck(*args: Any, **kwargs: Any) -> Any:
        if not (step.startswith("before") or step in ("marked", "holding")):
            original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(target, name, struck)


def main() -> None:
    """Sweep, or die."""
    asked = json.loads(sys.stdin.read())
    import django

    django.setup()
    from django_tasklock.operations import sweep, to_plain
    from tests.support.celery_site.configuration import Configuration

    app = Configuration.here().make_app()
    app.loader.import_default_modules()
    only(asked["tasks"])
    if asked.get("kill"):
        _die_at(asked["kill"])
    print(json.dumps(to_plain(sweep(**{"pause": 0.05, **asked["options"]}))))


if __name__ == "__main__":
    main()
