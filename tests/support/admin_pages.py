"""The admin's pages in the words of the tests."""

from __future__ import annotations

import hashlib
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

from django.contrib.admin.utils import quote
from django.test import Client

__all__ = ["LIST", "PERMISSIONS", "Reader", "acts_on", "page_of", "table", "token_of", "words"]

PERMISSIONS = {
    "viewer": ["view_lock"],
    "releaser": ["release_lock"],
    "operator": ["view_lock", "release_lock"],
    "nobody": ["view_lock", "release_lock", "view_ratelimit", "change_ratelimit"],
    "parked_viewer": ["view_parkedmessage"],
    "parked_operator": ["view_parkedmessage", "change_parkedmessage", "view_lock"],
    "auditor": ["view_auditentry"],
    "limit_viewer": ["view_ratelimit"],
    "limit_changer": ["change_ratelimit"],
    "limit_operator": ["view_ratelimit", "change_ratelimit"],
}
"""The permissions of people by their names; ``nobody`` is not staff. Others have none; ``root`` is a superuser."""
LIST = "/admin/tasklock/lock/"


def page_of(name: str, page: str = "change") -> str:
    """The path of a lock's page. By hand, so that a change of the addresses is seen."""
    return f"{LIST}{quote(name)}/{page}/"


def token_of(name: str) -> str:
    """The token with which ``take(name)`` takes that lock."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def acts_on(client: Client, name: str, **data: Any) -> Any:
    """Confirm a release."""
    return client.post(page_of(name, "release"), {"reason": "stuck", **data})


class Reader(HTMLParser):
    """Elements with their attributes, and what a strict policy would refuse."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def refused(self) -> list[tuple[str, dict[str, str | None]]]:
        """Inline scripts, styles and handlers."""
        return [
            (tag, attrs)
            for tag, attrs in self.elements
            if (tag == "script" and "src" not in attrs)
            or tag == "style"
            or "style" in attrs
            or any(name.startswith("on") for name in attrs)
            or any((value or "").strip().lower().startswith("javascript:") for value in attrs.values())
        ]


def table(text: str) -> list[dict[str, str]]:
    """The lines of a list of the admin's own: what is read in each column, by its name in the code."""
    found = re.search(r'<table id="result_list".*?</table>', text, re.DOTALL)
    lines = re.findall(r"<tr>(.*?)</tr>", found[0].partition("<tbody>")[2], re.DOTALL) if found else []
    cell = re.compile(r'<t[dh] class="field-(\w+)[^"]*">(.*?)</t[dh]>', re.DOTALL)
    return [{name: words(shown).strip() for name, shown in cell.findall(line)} for line in lines]


def words(text: str) -> str:
    """The text of a page, as it is read."""
    text = re.sub(r"<wbr>", "", text)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", text)))
