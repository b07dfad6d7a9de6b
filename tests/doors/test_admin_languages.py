"""Simplified Chinese: complete, compiled, and what a Chinese reader sees."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils.translation import override

from django_tasklock.backends import get_backend
from django_tasklock.operations.durations import format_duration
from tests.support.admin_pages import LIST, acts_on, page_of, words
from tests.support.stores import an_ask
from tests.support.translations import catalog, messages_in_code, po_file
from tests.testapp.models import Video

pytest_plugins = ["tests.support.admin_fixtures"]

CHINESE = {"HTTP_ACCEPT_LANGUAGE": "zh-hans"}
HOLES = re.compile(r"%\(\w+\)[a-z]|%%|</?\w+>")


def test_every_message_is_translated() -> None:
    """All that stands in modules and templates, and nothing that no longer does."""
    known = po_file()
    wanted = messages_in_code()
    assert len(wanted) > 100, "it looks where the messages are"
    assert {message: files for message, files in wanted.items() if not known.get(message)} == {}
    assert sorted(set(known) - set(wanted) - {""}) == []


def test_the_compiled_catalog_is_in_step() -> None:
    """Whoever edits the one must compile the other: ``django-admin compilemessages``."""
    assert {message: text for message, text in catalog().items() if message} == {
        message: text for message, text in po_file().items() if message
    }


@pytest.mark.parametrize("message", [message for message in po_file() if message])
def test_a_translation_has_the_same_holes(message: str) -> None:
    """A name lost in translation is an operator misled; one made up is an error."""
    assert sorted(HOLES.findall(po_file()[message])) == sorted(HOLES.findall(message))


def test_spans_in_both_languages() -> None:
    """By the two largest units."""
    for seconds, english, chinese in (
        (0, "0 s", "0 秒"),
        (59.9, "59 s", "59 秒"),
        (61, "1 min 1 s", "1 分 1 秒"),
        (7260, "2 h 1 min", "2 小时 1 分"),
        (90_000, "1 d 1 h", "1 天 1 小时"),
        (-5, "0 s", "0 秒"),
    ):
        assert format_duration(seconds) == english
        with override("zh-hans"):
            assert format_duration(seconds) == chinese


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("admin_settings")
def test_the_pages_in_chinese(operator: Client, take) -> None:
    """No English is left on them but names, code and the states of the project's own model."""
    row = Video.objects.create(status="processing", lock_token="another", lock_epoch=7)
    known = take("a", ttl=5000, row=f"testapp.video:{row.pk}", host="h", task="t", task_id="i")
    get_backend().acquire(an_ask("a", holder='{"host": "h", "pid": 7, "task": "t", "task_id": "i"}'))
    operator.post(page_of("a", "ask"), {"fingerprint": known, "reason": "r"}, **CHINESE)
    pages: dict[str, Any] = {
        "list": operator.get(LIST, **CHINESE),
        "empty": operator.get(LIST, {"q": "b"}, **CHINESE),
        "lock": operator.get(page_of("a"), **CHINESE),
        "free": operator.get(page_of("b"), **CHINESE),
        "release": operator.get(page_of("a", "release"), **CHINESE),
        "ask": operator.get(page_of("a", "ask"), **CHINESE),
        "selected": operator.post(f"{LIST}release/", {"lock": [f"{known} a", "x b"]}, **CHINESE),
    }
    ours = {"id", "ask", "live", "operator", "testapp", "video", "status", "processing", "redis", "tasklock", "epoch"}
    ours |= {"fence", "asked", "held", "by"}  # the last three: what came of an act is kept as it was written
    for what, page in pages.items():
        assert page.status_code == 200
        content = page.text.split('id="content-main"')[1].split("</main>")[0].partition(">")[2]
        content = re.sub(r"<select.*?</select>", "", content, flags=re.DOTALL)
        shown = re.sub(r"\b[0-9a-f]{12}\b", "", words(content))
        assert set(re.findall(r"[a-z]{2,}", shown.lower())) <= ours, what
    answer = acts_on(operator, "a", fingerprint=known)
    assert answer.status_code == 302


@pytest.mark.django_db
@pytest.mark.usefixtures("admin_settings")
def test_numbers_of_locales_do_not_reach_the_bar(operator: Client, take, settings: Any) -> None:
    """``value="3,599"`` is no number to a browser."""
    settings.USE_THOUSAND_SEPARATOR = True
    settings.LANGUAGE_CODE = "de"
    settings.LANGUAGES = [("de", "Deutsch")]
    take("a", hold=7_200_000)
    for url in (LIST, page_of("a")):
        [bar] = re.findall(r"<meter [^>]*>", operator.get(url).text)
        assert re.search(r'max="\d+" low="\d+" value="\d+"', bar), bar
    assert 'data-tasklock-refresh="5"' in operator.get(LIST).text
