"""Simplified Chinese: complete, compiled, and what a Chinese reader sees."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils.translation import override

from django_tasklock.operations.durations import format_duration
from tests.support.admin_pages import LIST, page_of
from tests.support.translations import catalog, messages_in_code, po_file

pytest_plugins = ["tests.support.admin_fixtures"]

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


def test_a_translation_has_the_same_holes() -> None:
    """A name lost in translation is an operator misled; one made up is an error."""
    for message, text in po_file().items():
        if message:
            assert sorted(HOLES.findall(text)) == sorted(HOLES.findall(message)), message


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
