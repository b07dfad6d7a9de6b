"""Calls with the same arguments have one lock, others have another, and the publisher decides which.

The name comes from all arguments, a template, a callable or the caller, and travels in the header.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import uuid
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import redis

from django_tasklock import TaskLock, TaskLockError, current_lock
from django_tasklock.celery import OnceTask
from django_tasklock.celery.fingerprint import fingerprint
from django_tasklock.names import MAX_LENGTH
from tests.support.once_app import OnceApp
from tests.testapp.models import Video

pytest_plugins = ["tests.support.once_fixtures"]


def keys(app: OnceApp) -> list[str]:
    return [message.key for message in app.all()]


class TestSameArguments:
    """Gold standard 8.29: how they are passed does not count."""

    def test_position_and_name_and_default(self, app):
        task = app.task(lambda x, y=2, *, z=None: None)
        task.delay(1)
        task.delay(x=1)
        task.delay(y=2, x=1, z=None)
        task.apply_async([1], {"y": 2})
        task.s(y=2).apply_async((1,))
        assert len(set(keys(app))) == 1

    def test_star_arguments(self, app):
        task = app.task()
        task.delay(1, 2, a=3, b=4)
        task.delay(1, 2, b=4, a=3)
        task.delay(2, 1, b=4, a=3)
        task.delay(1, b=4, a=3)
        first, second, *others = keys(app)
        assert first == second
        assert len({first, *others}) == 3


class Named(OnceTask):
    """As in source 004: the class names the lock."""

    abstract = True
    on_conflict = "wait"

    def get_lock(self, args, kwargs):
        client = redis.Redis()
        return client.lock(f"{self.name}:{args[0]}", timeout=kwargs.pop("hold", None), blocking_timeout=3)


class Keyed(OnceTask):
    """As celery-once has it."""

    abstract = True

    def get_key(self, args=None, kwargs=None):
        return f"site:{(args or [kwargs['site']])[0]}"


class TestGetLock:
    """A class of the project's own, whose method names the lock of a call."""

    def test_its_name_and_its_times_count(self, app):
        seen = []
        task = app.task(lambda x, hold=None: seen.append(current_lock().info()), base=Named, name="thumbs")
        assert task.lock_name(7) == "thumbs:7"
        assert not task.lock.is_locked(7)
        task.delay(7, hold=100)
        task.once(key="mine", timeout=50).delay(7, hold=100)
        app.app.send_task("thumbs", (7,), {"hold": 100})
        messages = app.all()
        assert [message.key for message in messages[:2]] == ["thumbs:7", "mine"]
        assert [message.ours["once"] for message in messages[:2]] == [
            {"timeout": 100.0, "blocking_timeout": 3}, {"timeout": 50, "blocking_timeout": 3},
        ]  # fmt: skip
        assert [app.run(message)[0] for message in messages] == ["SUCCESS"] * 3
        task.apply((7,), {"hold": 100})
        task(7, hold=100)
        assert [one.name for one in seen] == ["thumbs:7", "mine", "thumbs:7", "thumbs:7", "thumbs:7"]
        limits = [one.held_for + one.time_left for one in seen]
        assert limits == pytest.approx([100, 50, 100, 100, 100], abs=1)

    def test_a_call_that_does_not_wait(self, app):
        task = app.task(lambda x: None, base=Named)
        task.once(on_conflict="skip").delay(1)
        assert app.run()[0] == "SUCCESS"

    def test_get_key(self, app):
        task = app.task(lambda site: None, base=Keyed)
        task.delay("shop")
        task.delay(site="shop")
        assert keys(app) == ["site:shop"] * 2

    @pytest.mark.parametrize(
        ("own", "options", "match"),
        [
            (lambda self, site: site, {}, r"get_lock must be a method get_lock\(self, args, kwargs\)"),
            (lambda self, args, kwargs: "a", {"key": "b"}, r"both key= and get_lock\(\)"),
        ],
    )
    def test_one_that_cannot_work_is_refused_when_it_is_bound(self, app, own, options, match):
        base = type("Own", (OnceTask,), {"abstract": True, "get_lock": own})
        with pytest.raises(TaskLockError, match=match):
            app.task(base=base, **options)

    @pytest.mark.parametrize("said", [None, "", 7, object()])
    def test_and_so_is_an_answer_that_names_no_lock(self, app, said):
        task = app.task(base=type("Own", (OnceTask,), {"abstract": True, "get_lock": lambda self, args, kwargs: said}))
        with pytest.raises(TaskLockError, match="must return the lock's name"):
            task.delay()
        assert app.all() == []

    def test_a_method_of_that_name_for_something_else(self, app):
        base = type("Own", (OnceTask,), {"abstract": True, "get_key": lambda self, video: f"videos/{video}"})
        assert app.task(base=base, name="encode").lock_name(1).startswith("encode:")


class Colour(enum.Enum):
    RED = 1
    GREEN = "1"


class Other(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Marks(enum.Flag):
    A = 1
    B = 2


DIFFERENT = [
    1, "1", True, 1.0, Decimal(1), b"1", [1], {1}, {1: 1}, {"1": 1}, {1: "1"}, Number.ONE, Colour.RED, Colour.GREEN,
    Other.RED, None, "None", False, 0, "", "0", 0.0, -0.0, float("inf"), float("-inf"), float("nan"), "nan", [], {},
    set(), [[]], [[], []], [[[]]], [None], ["None"], [1, 2], [12], ["1", "2"], ["1,2"], ["12"], "[1, 2]", [[1], 2],
    [1, [2]], {"a": 1, "b": 2}, {"a": {"b": 2}}, {"a": 2, "b": 1}, [["a", 1], ["b", 2]], {("a", 1): 2}, "int(1:1)",
    "a", "A", "ä", "a\u0308", "\ud800", "\udfff", "\U0001f600", "\x00", " ", "\n", 10**50, 10**50 + 1, 10**5000,
    -(10**5000), 2**53, float(2**53), 2**53 + 1, 0.1, 0.1 + 2**-56, Decimal("0.1"), Decimal("0.10"), date(2026, 1, 1),
    datetime.fromisoformat("2026-01-01"), datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))), "2026-01-01", time(0), timedelta(0), timedelta(days=1),
    timedelta(seconds=1), uuid.UUID(int=1), str(uuid.UUID(int=1)), Marks.A, Marks.B, Marks.A | Marks.B, b"", b"\xff",
    "ff", [b"a"], ["a"], [True, False], [False, True], ["True", "False"], ["a", "b"], ["a)str(b"], ["1:a)str(1:b"],
    ["a)str(1:b"], ["a', 'b"], ["a,b"], {"a": "b)str(c"}, {"a": "b", "c": None},
]  # fmt: skip


def test_different_values_never_make_one_key():
    """Gold standard 8.38: their types count as well."""
    seen: dict[str, Any] = {}
    for value in DIFFERENT:
        print_ = fingerprint({"value": value})
        assert print_ not in seen, (value, seen.get(print_))
        seen[print_] = value


def test_equal_values_make_one_key():
    class Text(str):
        def __str__(self):
            return "something else"

    class Whole(int):
        def __str__(self):
            return "something else"

    for one, two in [
        ("a" * 3, "aaa"),
        (float("nan"), float("nan") * 2),
        (10**5000, 10**2500 * 10**2500),
        (b"a", bytearray(b"a")),
        ("a", Text("a")),
        (1, Whole(1)),
        ({1, 2}, frozenset({2, 1})),
        ((1, (2,)), [1, [2]]),
        ({"a": 1, "b": [{"c": 2, "d": 3}]}, OrderedDict([("b", [{"d": 3, "c": 2}]), ("a", 1)])),
        (Marks.A | Marks.B, Marks.B | Marks.A),
    ]:
        assert fingerprint({"value": one}) == fingerprint({"value": two}), (one, two)


class Plain:
    pass


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, {"a": Plain()}], "argument['x'][1]['a'] is a Plain, of which no lock name can be made"),
        (Video(), "argument['x'] is a Video, of which no lock name can be made: pass its primary key"),
        (CIRCLE, "an argument contains itself"),
    ],
    ids=["object", "model", "circle"],
)
def test_a_value_without_a_fixed_text_is_refused(app, value, message):
    task = app.task(lambda x: None)
    with pytest.raises(TaskLockError) as caught:
        task.delay(value)
    assert message in str(caught.value)
    assert app.all() == []


@pytest.mark.parametrize("length", [167, 250])
def test_long_task_names(app, length):
    """Gold standard 8.29: a key always fits, also behind ``unique:``."""
    task, twin = (app.task(lambda x: None, name="t" * length + end, unique="until_finish") for end in "ab")
    for each in (task, twin):
        each.delay(1)
    first, second = app.all()
    assert first.key != second.key
    assert len(first.key) <= MAX_LENGTH
    assert app.run(first) == ("SUCCESS", None)
    assert task.delay(1).id != first.id


class TestTemplates:
    @pytest.mark.parametrize("email", ["x" * 500, "\udc80"])
    def test_what_no_lock_can_be_called_is_hashed(self, app, email):
        """F45: as the default key is, where it used to raise in the request that publishes."""
        task = app.task(lambda email: None, key="x:{email}")
        task.delay(email) if email.isascii() else task.once().apply_async((email,), serializer="json")
        [key] = keys(app)
        assert key.startswith("x:")
        assert len(key) == 2 + 64
        assert key == task.lock.name(email=email) == task.lock_name(email)
        assert key != task.lock_name(email + "x")

    def test_over_the_arguments(self, app):
        task = app.task(lambda video_id, quality="hd", **more: None, key="video:{video_id}:{quality}")
        task.delay(42)
        task.delay(video_id=42)
        task.delay("42", "hd", more=1)
        task.delay(42, quality="sd")
        assert keys(app) == ["video:42:hd"] * 3 + ["video:42:sd"]

    def test_separators_in_values(self, app):
        """Gold standard 8.38: they do not make two calls one."""
        task = app.task(lambda a, b: None, key="{a}:{b}")
        task.delay("1:2", "3")
        task.delay("1", "2:3")
        first, second = keys(app)
        assert first != second

    def test_the_prefix_of_the_store_is_not_put_twice(self, app):
        task = app.task(lambda x: None, key="task_lock:{x}")
        task.delay(6)
        task.once(key="task_lock:6").delay(7)
        assert keys(app) == ["6", "6"]
        with TaskLock("6"):
            assert task.lock.is_locked(x=6)


class TestCallables:
    """They take the arguments, never the task."""

    def test_a_function_a_staticmethod_and_a_partial_in_a_class(self, app):
        class ByFunction(OnceTask):
            name = "once.by-function"
            key = lambda video_id: f"video:{video_id}"  # noqa: E731

            def run(self, video_id):
                return video_id

        class ByStatic(ByFunction):
            name = "once.by-static"

            @staticmethod
            def key(video_id):
                return f"static:{video_id}"

        class ByPartial(ByFunction):
            name = "once.by-partial"
            key = functools.partial("{1}:{0}".format, "x")

        for kind in (ByFunction, ByStatic, ByPartial):
            app.app.register_task(kind()).delay(42)
        assert keys(app) == ["video:42", "static:42", "42:x"]
        assert app.app.tasks["once.by-static"].lock.name(video_id=1) == "static:1"


class TestTravels:
    """Computed where it is published, and nowhere else."""

    def test_a_template_that_differs_on_the_worker(self, app):
        """Gold standard 8.29: a deploy between publish and run."""
        held = []

        def body(x):
            held.extend(name for name in ("old:1", "new:1") if TaskLock(name).locked())

        task = app.task(body, key="old:{x}")
        task.delay(1)
        type(task).key = "new:{x}"
        assert app.run() == ("SUCCESS", None)
        assert held == ["old:1"]

    @pytest.mark.database
    @pytest.mark.django_db
    def test_a_row_that_was_deleted(self, app):
        """Gold standard 8.29: the key needs a row that is gone when the task runs."""
        ran = []
        task = app.task(
            lambda pk: ran.append(TaskLock("status:uploading").locked()),
            key=lambda pk: f"status:{Video.objects.get(pk=pk).status}",
        )
        video = Video.objects.create()
        assert video.status == "uploading"
        task.delay(video.pk)
        video.delete()
        assert app.run() == ("SUCCESS", None)
        assert ran == [True]

    def test_published_by_name(self, app):
        """There nobody knew the task: the worker computes the key, and again for a retry with other arguments."""
        held = []

        def body(self, x):
            held.append(TaskLock(f"v:{x}").locked())
            if not self.request.retries:
                raise self.retry(args=(2,), countdown=0)

        task = app.task(body, bind=True, key="v:{x}")
        app.app.send_task(task.name, (1,))
        assert app.run()[0] == "RETRY"
        message = app.take()
        assert message.key == "v:2"
        assert app.run(message) == ("SUCCESS", None)
        assert held == [True, True]

    @pytest.mark.parametrize("key", ["v:{arg.id}", lambda arg: f"v:{arg['id']}", None])
    def test_models_of_the_body_are_dicts_in_a_message(self, app, key, monkeypatch):
        """With ``pydantic=True``: whoever publishes by its name, and the worker then, knows the dict alone."""
        monkeypatch.setitem(sys.modules, "pydantic", types.SimpleNamespace(BaseModel=Model))
        held = []

        def body(self, arg: Model):
            held.append(self.lock.is_locked(arg=arg.model_dump()))
            if not self.request.retries:
                raise self.retry(args=({"id": arg.id},), countdown=0)
            return arg.id

        task = app.task(body, bind=True, key=key, pydantic=True)
        name = task.lock_name({"id": 1})
        assert name == "v:1" if key else name.startswith(f"{task.name}:")
        app.app.send_task(task.name, ({"id": 1},))
        task.delay({"id": 1})
        if hasattr(task.run, "dump_arguments"):  # before Celery 5.7 no message can have a model
            task.delay(Model(1))
            assert task.lock_name(arg=Model(1)) == name
        for message in app.all():
            assert message.headers.get("tasklock", {"key": name})["key"] == name
            assert app.run(message)[0] == "RETRY"
            again = app.take()
            assert again.key == name
            assert app.run(again) == ("SUCCESS", 1)
        assert set(held) == {True}


class Model:
    """As much of pydantic's ``BaseModel`` as Celery uses."""

    def __init__(self, id):
        self.id = id

    @classmethod
    def model_validate(cls, value, **options):
        return value if isinstance(value, cls) else cls(**value)

    def model_dump(self, **options):
        return vars(self)

    def __eq__(self, other):
        return vars(self) == vars(other)


class TestLockAttribute:
    def test_as_that_of_the_decorators(self, app):
        task = app.task(lambda video_id, quality, x=1: None, key="video:{video_id}:{x}")
        assert task.lock.name(video_id=42) == "video:42:1"  # what the name does not use is not asked for
        with pytest.raises(TaskLockError, match="also needs video_id"):
            task.lock.name(quality=1)
        default = app.task(lambda a, b=2: None)
        assert default.lock.name(a=1) == default.lock.name(a=1, b=2)
        with pytest.raises(TypeError):
            default.lock.name(b=1)
        with TaskLock(default.lock.name(a=1)):
            assert default.lock.is_locked(a=1, b=2)
            assert not default.lock.is_locked(a=1, b=3)
            assert default.lock.info(a=1).holder
