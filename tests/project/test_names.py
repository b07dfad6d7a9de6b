"""Calls with different arguments never have one lock, those with the same always; what can name no lock is refused."""

from __future__ import annotations

import inspect
import itertools
from enum import Enum, StrEnum
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.db.models import TextChoices
from django.utils.safestring import mark_safe

from django_tasklock.exceptions import TaskLockError
from django_tasklock.names import MAX_LENGTH, NameTemplate, clean, clean_all, parameters_of
from tests.testapp.models import Video

PREFIX = "task_lock:"

# Values that contain separators, escapes of separators, and escapes of those.
_SOME = ["", "1", "2", "20", ":", "::", "-", "%", "%3A", "%253A", "%2", "3A", "a:b", "a", "b"]
TRICKY = [*_SOME, " ", " 13", "\N{EN DASH}", "é", "é:"]


class Mixed(str, Enum):  # noqa: UP042  # what others have written
    NIGHTLY = "nightly"


class Strings(StrEnum):
    NIGHTLY = "nightly"


class Choices(TextChoices):
    NIGHTLY = "nightly", "Every night"


# Texts that are no plain ones: of each of the enums one of repr, str and format says something else.
OTHERS = [Mixed.NIGHTLY, Strings.NIGHTLY, Choices.NIGHTLY, mark_safe("nightly")]


def process(video_id, user="nobody", *rest, quality="hd", **more):
    """A function whose arguments name locks."""


class TestClean:
    @pytest.mark.parametrize(
        ("name", "said"),
        [
            pytest.param("", "empty", id="empty"),
            pytest.param(PREFIX, "empty", id="only the prefix"),
            pytest.param(PREFIX + "x" * (MAX_LENGTH + 1), "200 characters, .*201", id="one too long"),
            pytest.param(b"video:42", "must be str, not bytes .*decode", id="bytes"),
            pytest.param(42, "must be str, not int", id="int"),
            pytest.param("a\0b", "printable", id="NUL"),
            pytest.param("\udc80", "printable", id="lone surrogate"),
        ],
    )
    def test_bad_names_are_refused_with_the_reason(self, name, said):
        with pytest.raises(TaskLockError, match=said) as caught:
            clean(name, PREFIX)
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize(
        ("name", "cleaned"),
        [
            *((name, name) for name in ("6", "a b", "größe-漢字", "x" * MAX_LENGTH, "{no template}")),
            *((f"{prefix}6", "6") for prefix in (PREFIX, PREFIX * 2, "{task_lock}:", "{task_lock}:task_lock:")),
        ],
    )
    def test_with_and_without_the_prefix_is_one_lock(self, name, cleaned):
        assert clean(name, PREFIX) == cleaned

    def test_cleaning_twice_changes_nothing(self):
        for parts in itertools.product([PREFIX, "{task_lock}:", "task_lock", ":", "6"], repeat=3):
            try:
                once = clean("".join(parts), PREFIX)
            except TaskLockError:
                continue
            assert clean(once, PREFIX) == once

    @pytest.mark.parametrize("name", OTHERS)
    def test_a_text_of_another_class_is_its_value(self, name):
        assert type(clean(name, PREFIX)) is str
        assert clean(name, PREFIX) == "nightly"
        assert clean_all([name, "b"], PREFIX).each == ("b", "nightly")
        assert clean(clean_all([name, "b"]), PREFIX).each == ("b", "nightly")  # several names stay several


class TestTemplate:
    @pytest.mark.parametrize(
        ("template", "args", "kwargs", "name"),
        [
            ("video:{video_id}", (42,), {}, "video:42"),
            ("video:{video_id}", (), {"video_id": 42}, "video:42"),
            ("{video_id}:{user}", (42,), {}, "42:nobody"),
            ("{video_id}:{quality}", (42, "ann", 1, 2), {"quality": "sd", "other": 3}, "42:sd"),
            ("{video_id!r}", ("x",), {}, "'x'"),
            ("nightly", (42,), {}, "nightly"),
            ("video:{0}", (42,), {}, "video:42"),
            ("{1.name!r:>6}/{0[0]:04d}", ([7],), {"user": SimpleNamespace(name="ann")}, " 'ann'/0007"),
            ("{{{0}}}{{0}}:{video_id:{0}}", (2,), {}, "{2}{0}: 2"),
            (lambda video_id, **_: f"v{video_id}", (42,), {"quality": "sd"}, "v42"),
        ],
    )
    def test_a_call_makes_a_name(self, template, args, kwargs, name):
        assert NameTemplate(template, process).name(args, kwargs) == name

    @pytest.mark.parametrize(
        ("template", "said"),
        [
            pytest.param("video:{vid}", "names 'vid', .*; known: video_id, user, quality", id="unknown"),
            pytest.param("video:{}", "names '0'", id="unnamed"),
            pytest.param("video:{3}", "names '3'", id="a number too high"),
            pytest.param("{rest}", "names 'rest'", id="*args"),
            pytest.param("{more}", "names 'more'", id="**kwargs"),
            pytest.param("{video_id}{user}", "side by side", id="adjacent"),
            pytest.param("video:{video_id", "video:{video_id", id="brace left open"),
            pytest.param("{video_id!x}", "video_id!x", id="unknown conversion"),
            pytest.param("{video_id}%{user}", "another separator", id="the escape as separator"),
            pytest.param("{video_id:{width}}", "names 'width'", id="unknown argument in a format"),
        ],
    )
    def test_a_template_that_cannot_work_is_refused_at_decoration(self, template, said):
        with pytest.raises(TaskLockError, match=said):
            NameTemplate(template, process)

    @pytest.mark.parametrize("template", ["{a}:{b}", "x:{b}:{a}:y", "{a}::{b}", "{a}3A{b}", "{a}\N{EN DASH}{b}"])
    def test_different_arguments_never_make_one_name(self, template):
        def function(a, b):
            pass

        names = NameTemplate(template, function)
        pairs = list(itertools.product(TRICKY, repeat=2))
        assert len({names.name(pair, {}) for pair in pairs}) == len(pairs)


def test_a_name_without_a_whole_call():
    """``process.lock.is_locked(video_id=42)`` needs the fields of the template only."""
    template = NameTemplate("{quality}:{user}", process)
    assert template.name_for({"user": "ann", "quality": "sd"}) == "sd:ann"
    with pytest.raises(TaskLockError, match="also needs quality, user"):
        template.name_for({})
    assert NameTemplate(lambda video_id: f"v{video_id}", process).name_for({"video_id": 42}) == "v42"


class Plain:
    """Has the text of every object: its type and its address."""


class TestObjectsWithoutAName:
    """Two of them never have one text, so such a lock would exclude nobody."""

    @pytest.mark.parametrize("value", [object(), [Plain()]], ids=["object", "in a list"])
    @pytest.mark.parametrize("template", ["a:{x}", "a:{y}:{x!s:>80}"])
    def test_is_refused(self, template, value):
        names = NameTemplate(template, lambda x, y=1: None)
        with pytest.raises(TaskLockError) as caught:
            names.name((value,), {})
        message = str(caught.value)
        assert message.startswith(f"lock name {template!r}: {{x")
        assert " at 0x" in message
        assert "write e.g. {x.id}" in message

    @pytest.mark.parametrize("tags", [{"a", "b"}, frozenset("ab")], ids=["set", "frozenset"])
    def test_so_is_a_set_which_each_process_writes_in_another_order(self, tags):
        template = NameTemplate("tags:{tags}", lambda tags: None)
        with pytest.raises(TaskLockError, match=r"\{tags\} is a (frozen)?set.*pass it sorted, as a tuple"):
            template.name((tags,), {})
        assert template.name((tuple(sorted(tags)),), {}) == "tags:('a', 'b')"

    def test_so_is_an_unsaved_instance(self):
        names = NameTemplate("video:{video}", lambda video: None)
        with pytest.raises(TaskLockError, match=r"\{video\} is an unsaved Video.*save it first.*\{video.pk\}"):
            names.name((Video(),), {})
        assert names.name((Video(pk=7),), {}) == "video:Video object (7)"
        with pytest.raises(TaskLockError, match="is an unsaved Video"):
            names.name_for({"video": Video()})
        deep = NameTemplate("video:{video.video}:{n}", lambda video, n=1: None)
        with pytest.raises(TaskLockError, match="is an unsaved Video"):
            deep.name((SimpleNamespace(video=Video()),), {})

    def test_a_text_may_say_what_it_likes(self):
        names = NameTemplate("a:{x}", lambda x: None)
        assert names.name((repr("<object at 0x7f12>"),), {}) == "a:'<object at 0x7f12>'"
        assert names.name((UUID(int=1),), {}) == "a:00000000-0000-0000-0000-000000000001"
        assert NameTemplate("a:{x.id}", lambda x: None).name((SimpleNamespace(id=3),), {}) == "a:3"


SHAPES = [
    lambda: None,
    lambda a: None,
    lambda a, b=2: None,
    lambda a, /, b: None,
    lambda a, *, b=2: None,
    lambda a, *more: None,
    lambda a, **rest: None,
]
CALLS = [
    ((), {}), ((1,), {}), ((1, 3), {}), ((1, 2, 3), {}), ((), {"a": 1}), ((), {"b": 3, "a": 1}), ((1,), {"b": 3}),
    ((1,), {"a": 3}), ((1,), {"c": 3}), ((), {"a": 1, "c": 3}), ((), {"c": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
@pytest.mark.parametrize("function", SHAPES)
def test_arguments_are_bound_as_python_binds_them(function, args, kwargs):
    assert _bound(parameters_of(function).bind, args, kwargs) == _bound(_as_python_does(function), args, kwargs)


def _as_python_does(function):
    def bind(args, kwargs):
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    return bind


def _bound(bind, args, kwargs):
    try:
        return bind(args, kwargs)
    except TypeError as error:
        return str(error)
