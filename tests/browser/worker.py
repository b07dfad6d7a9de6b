"""Runs inside the example: takes orders, one JSON array a line, and answers each with one line of JSON.

``["claim", pk, {}]`` starts to work on a video, as the site's task does; ``["write", pk, {"progress": 40}]`` has that
work write to its row; ``["end", pk, {}]`` ends it.
What goes wrong is answered by the name of the exception. ``["manage", [argument, ...], {}]`` is a management command
without the second that it takes to start one; the answer is exit status, output and errors. ``["publish", [pk, ...],
{}]`` publishes the site's task. ``["rest", "", {}]`` ends all work that is left, and says whether that went well.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import django


class Job:
    """One lock that is held in a thread of its own."""

    def __init__(self, run: Callable[[Job], Any]) -> None:
        self.orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[Job], Any]) -> None:
        try:
            self.answers.put(run(self))
        except Exception as error:
            self.answers.put(type(error).__name__)

    def serve(self, act: Callable[[dict[str, Any]], object]) -> None:
        """Say that it has begun, and act on orders until there are no more."""
        self.answers.put("holds")
        for order in iter(self.orders.get, None):
            try:
                act(order)
                self.answers.put("done")
            except Exception as error:
                self.answers.put(type(error).__name__)

    def end(self) -> bool:
        """Whether it has ended, as it was told to."""
        self.orders.put(None)
        self._thread.join(10)
        return not self._thread.is_alive()

    def tell(self, order: dict[str, Any] | None) -> Any:
        """One order, and its answer."""
        self.orders.put(order)
        return self.answers.get(timeout=30)


def manage(arguments: list[str]) -> tuple[int, str, str]:
    """As ``manage.py`` would."""
    from django.core.management import ManagementUtility

    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            ManagementUtility(["manage.py", *arguments]).execute()
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def main() -> None:
    """Until the orders end."""
    django.setup()
    from django_tasklock import current_claim
    from videos.tasks import process_video, video_lock

    def claim(pk: int) -> Callable[[Job], str]:
        @video_lock
        def work(video_id: int, job: Job) -> str:
            claim = current_claim()
            job.serve(lambda order: claim.update(**order))
            return "ended"

        return lambda job: work(pk, job)

    jobs: dict[Any, Job] = {}
    for line in sys.stdin:
        verb, what, more = json.loads(line)
        answer: Any
        if verb == "manage":
            answer = manage(what)
        elif verb == "rest":
            ended = [job.end() for job in jobs.values()]
            answer = all(ended)
            jobs.clear()
        elif verb == "publish":
            answer = [process_video.delay(video_id=pk).id for pk in what]
        elif verb == "claim":
            jobs[what] = Job(claim(what))
            answer = jobs[what].answers.get(timeout=30)
        else:
            answer = jobs[what].tell(None if verb == "end" else more)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
