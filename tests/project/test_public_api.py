"""What may be imported, what importing costs, and that errors travel between processes."""

from __future__ import annotations

import json
import pickle

import pytest
from celery import Celery

from django_tasklock import RateLimiter, StateGuard, TaskLock, exceptions, task_lock_context
from django_tasklock.exceptions import (
    AlreadyPublished,
    BackendUnavailable,
    BodyExited,
    CrashLoop,
    GuardRejected,
    LockLost,
    RateLimitExceeded,
    ReleaseAsked,
    StaleClaim,
    TaskLockAcquireError,
    TaskLockError,
    TransactionOpen,
)
from tests.support.public import script, setting


class TestNames:
    def test_objects_say_what_they_are(self):
        guard = StateGuard(claim_from=["new", "billing"], claim_as="billing")
        assert [repr(one) for one in (TaskLock("import"), guard, RateLimiter("bank", "100/m"))] == [
            "<TaskLock 'import'>",
            "<StateGuard status: ['new', 'billing'] to 'billing'>",
            "<RateLimiter 'bank' 100/m>",
        ]

    def test_errors_are_a_family(self):
        for name in exceptions.__all__:
            assert issubclass(getattr(exceptions, name), TaskLockError)
        assert issubclass(TaskLockError, Exception)
        assert not issubclass(LockLost, TaskLockAcquireError)


@pytest.mark.parametrize("block", [TaskLock, task_lock_context])
def test_a_block_that_did_not_wait_says_how_it_would(tasklock, block):
    """Who knows ``timeout`` as the time to wait has written ``TaskLock("import", timeout=5)``."""
    with tasklock.lock_held("import"):
        with pytest.raises(TaskLockAcquireError, match="the block did not wait for it: blocking_timeout= says"):
            block("import", timeout=5).__enter__()
        with pytest.raises(TaskLockAcquireError, match="s of its timeout left$"):
            block("import", blocking_timeout=0.01).__enter__()


LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def loaded(code: str) -> set[str]:
    return set(json.loads(script(f"{code}\n{LOADED}", DJANGO_SETTINGS_MODULE="")))


class TestImport:
    CONFIGURE = "from django.conf import settings; settings.configure(INSTALLED_APPS=['django_tasklock']);"

    @pytest.mark.parametrize("before", ["", CONFIGURE], ids=["no settings", "settings, apps not loaded"])
    def test_touches_neither_models_nor_celery_nor_redis(self, before):
        found = loaded(f"{before}import django_tasklock")
        roots = {name.partition(".")[0] for name in found}
        assert roots & {"celery", "kombu", "billiard", "redis", "django_redis", "pytest"} == set()
        for name in ("models", "celery", "apps", "checks", "metrics", "backends.redis", "backends.database"):
            assert f"django_tasklock.{name}" not in found
        assert "django_tasklock" in found

    def test_setting_up_django_imports_no_redis_client_and_asks_no_store(self):
        """A management command that locks nothing must not pay for one, nor fail when it is down."""
        code = """
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_tasklock"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/none.sqlite3"}},
    TASKLOCK={"LOCATION": "redis://127.0.0.1:1/0"},
)
import django
django.setup()
import sys
assert not {name.partition(".")[0] for name in sys.modules} & {"redis", "django_redis"}
import socket
socket.socket.connect = None
from django.core.checks import run_checks
assert run_checks() == [], run_checks()
"""
        script(code, DJANGO_SETTINGS_MODULE="")

    @pytest.mark.slow
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_the_celery_host_is_installed_whenever_celery_is_imported(self, when):
        lines = [
            "import celery",
            "from django.conf import settings; settings.configure(INSTALLED_APPS=['django_tasklock'])",
            "import django; django.setup()",
        ]
        if when == "after":
            lines.append(lines.pop(0))
        lines += [
            "from celery import Task, signals",
            "from django_tasklock.host import host",
            "assert type(host()).__name__ == 'CeleryHost'",
            "assert hasattr(Task, 'lock') and signals.before_task_publish.receivers",
        ]
        assert "django_tasklock.celery.receivers" in loaded("\n".join(lines))

    def test_without_the_app_an_error_says_what_to_do(self):
        """Without it no child forgets the locks of its parent, and nothing is checked."""
        code = f"""
from django.conf import settings
settings.configure(INSTALLED_APPS=[], TASKLOCK={setting("redis")!r})
import django
django.setup()
from django.core.exceptions import ImproperlyConfigured
from django_tasklock import TaskLock
try:
    with TaskLock("a", timeout=5): print("held")
except ImproperlyConfigured as error:
    print(error)
"""
        said = script(code, DJANGO_SETTINGS_MODULE="")
        assert said.startswith("INSTALLED_APPS has no 'django_tasklock': add it, and run manage.py migrate")

    def test_works_while_the_apps_are_being_loaded(self, tmp_path):
        """From an app's package and its models, decorating on the way."""
        videos = tmp_path / "videos"
        videos.mkdir()
        (videos / "__init__.py").write_text(
            "import django_tasklock\n"
            "from django_tasklock import *\n"
            "@task_lock('video:{video_id}')\n"
            "def early(video_id): return current_lock().name\n"
        )
        (videos / "models.py").write_text(
            "from django.db import models\n"
            "from django_tasklock import StateGuard, model_lock, task_lock\n"
            "from django_tasklock.models import GuardedModel\n"
            "@model_lock('videos.Video', 'video:{pk}', guard=StateGuard(claim_from=['new'], claim_as='running'))\n"
            "def process(pk): pass\n"
            "class Video(GuardedModel):\n"
            "    status = models.CharField(max_length=20)\n"
            "    @task_lock(lambda self: f'video:{self.pk}')\n"
            "    def work(self): return 'worked'\n"
        )
        code = """
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["videos", "django_tasklock"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TASKLOCK={"BACKEND": "django_tasklock.backends.memory.MemoryBackend"},
)
import django
django.setup()
import videos, videos.models
print(videos.early(42), videos.models.Video(pk=7).work())
from django.core.checks import run_checks
print([check.id for check in run_checks(tags=["tasklock"])])
"""
        assert script(code, cwd=tmp_path, DJANGO_SETTINGS_MODULE="").split("\n")[:2] == [
            "video:42 worked",
            "['tasklock.W002']",
        ]


ERRORS = [
    TaskLockError("text", name="video:42"),
    TaskLockAcquireError("text", name="video:42", holder="web1:7", held_for=1.5, time_left=2.5),
    AlreadyPublished("text", name="unique:video:42", holder="web1:7", held_for=1.5, time_left=2.5),
    LockLost("text", name="video:42"),
    ReleaseAsked("text", name="video:42"),
    GuardRejected("text", name="videos.Video:42", state="ready"),
    StaleClaim("text", name="videos.Video:42"),
    BackendUnavailable("text", name="video:42"),
    TransactionOpen("text", name="video:42"),
    BodyExited("text"),
    CrashLoop("text", name="video:42"),
    RateLimitExceeded("text", name="tavily", retry_after=0.5),
    TaskLockError("text"),
]


def same(one: BaseException, other: BaseException) -> bool:
    return (type(one), str(one), one.args, vars(one)) == (type(other), str(other), other.args, vars(other))


class TestErrorsTravel:
    """A worker must be able to hand any of them to its parent process without dying of it."""

    def test_there_is_one_of_each(self):
        assert {type(error).__name__ for error in ERRORS} == set(exceptions.__all__)

    def test_through_pickle(self):
        noted = LockLost("text", name="video:42")
        noted.add_note("seen at step 3")
        for error in (*ERRORS, noted, NoSlot(5)):
            assert same(pickle.loads(pickle.dumps(error)), error), error

    @pytest.mark.parametrize("serializer", ["pickle", "json"])
    @pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
    def test_through_a_result_backend_of_celery(self, error, serializer):
        backend = Celery("tests", backend="cache+memory://", set_as_current=False).backend
        found = backend.exception_to_python(backend.prepare_exception(error, serializer))
        assert type(found) is type(error)
        assert str(found) == "text"
        if serializer == "pickle":
            assert same(found, error)


class NoSlot(TaskLockError):
    """With a constructor of its own."""

    def __init__(self, slots: int) -> None:
        super().__init__(f"{slots} slots taken", name="slots")
        self.slots = slots
