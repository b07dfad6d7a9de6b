"""Who is there at the example: those who log in, and the one who does as told."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.browser.example import Example

__all__ = ["PEOPLE", "PREPARE", "VIDEOS", "Worker"]

PEOPLE = ("root", "operator", "viewer", "staff")
"""A superuser; one who may look and release; one who may only look; one who may do nothing but log in."""
VIDEOS = 5

PREPARE = """
import json, sys
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from videos.models import Video

call_command("migrate", verbosity=0)
password, sessions = make_password("opensesame"), {}
may = {"operator": ["view_lock", "release_lock", "view_ratelimit", "change_ratelimit", "view_video", "change_video",
                    "view_parkedmessage", "change_parkedmessage", "view_auditentry"],
       "viewer": ["view_lock", "view_ratelimit", "view_video"]}
*people, videos = sys.argv[1:]
for name in people:
    user = User.objects.create(username=name, is_staff=True, is_superuser=name == "root", password=password)
    user.user_permissions.set(Permission.objects.filter(codename__in=may.get(name, ())))
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    sessions[name] = session.session_key
Video.objects.bulk_create(Video(title=f"Video {n + 1}", upload="uploads/none.mp4") for n in range(int(videos)))
print(json.dumps(sessions))
"""
"""A script: tables, people with a session each, and videos that wait."""


class Worker:
    """A process inside the example that takes orders: see ``worker.py`` beside this."""

    def __init__(self, example: Example) -> None:
        self._example = example
        pipe = subprocess.PIPE
        self.process = example.start(
            "-m", "tests.browser.worker", log="worker.log", stdin=pipe, stdout=pipe, text=True, bufsize=1
        )

    def __call__(self, verb: str, what: object, **more: object) -> Any:
        """Give one order and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([verb, what, more]) + "\n")
        line = self.process.stdout.readline()
        assert line, self._example.log("worker.log")
        return json.loads(line)
