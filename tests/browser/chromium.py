"""Chromium in a thread of its own, and what its pages complain about.

Playwright's synchronous interface keeps an event loop running in the thread that uses it: Django's ORM refuses to
work in such a thread, and so does ``asyncio.run``. Therefore whole tests move over: see ``fixtures``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import django

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page

__all__ = ["Chromium", "Visits", "find"]

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / ".screenshots" / f"django-{'.'.join(map(str, django.VERSION[:2]))}"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 10
T = TypeVar("T")


def find() -> str | None:
    """The path of a Chromium: ``TASKLOCK_TEST_CHROMIUM``, else from ``PATH``."""
    return os.environ.get("TASKLOCK_TEST_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)


class Chromium:
    """One browser for all tests. A context manager."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chromium")

    def do(self, work: Callable[[], T]) -> T:
        """Run this in the browser's thread; what it returned or raised."""
        return self._thread.submit(work).result()

    def __enter__(self) -> Self:
        self.do(self._open)
        return self

    def __exit__(self, *details: object) -> None:
        self.do(self._close)
        self._thread.shutdown()

    def _open(self) -> None:
        from playwright.sync_api import expect, sync_playwright

        expect.set_options(timeout=SECONDS * 1000)
        self._playwright = sync_playwright().start()
        as_root = hasattr(os, "geteuid") and os.geteuid() == 0
        self.browser = self._playwright.chromium.launch(
            executable_path=self.program,
            args=["--no-sandbox"] if as_root else [],  # Chromium refuses to sandbox what root runs
        )

    def _close(self) -> None:
        self.browser.close()
        self._playwright.stop()


class Visits:
    """Makes pages for people, and collects whatever any of them says on the console."""

    def __init__(self, chromium: Chromium, address: str, sessions: dict[str, str]) -> None:
        self.address = address
        self.problems: list[str] = []
        """Everything on a console: messages of any level, uncaught errors, violations of the policy."""
        self._chromium = chromium
        self._sessions = sessions
        self._contexts: list[BrowserContext] = []
        self._expected: list[re.Pattern[str]] = []

    def __call__(
        self,
        person: str | None = "operator",
        *,
        scripts: bool = True,
        dark: bool = False,
        width: int = 1280,
        height: int = 800,
        language: str = "en",
        address: str = "",
        **options: Any,
    ) -> Page:
        """A new page in a window of its own, of somebody who is logged in."""
        address = address or self.address
        context = self._chromium.browser.new_context(
            base_url=address,
            java_script_enabled=scripts,
            color_scheme="dark" if dark else "light",
            viewport={"width": width, "height": height},
            locale=language,
            reduced_motion="reduce",
            **options,
        )
        self._contexts.append(context)
        context.set_default_timeout(SECONDS * 1000)
        if person is not None:
            context.add_cookies([{"name": "sessionid", "value": self._sessions[person], "url": address}])
        context.on("console", self._heard)
        context.on("weberror", lambda error: self.problems.append(f"uncaught: {error.error}"))
        return context.new_page()

    def _heard(self, message: ConsoleMessage) -> None:
        said = f"{message.type}: {message.text} ({message.location.get('url')})"
        if not any(pattern.search(said) for pattern in self._expected):
            self.problems.append(said)

    def expect(self, pattern: str) -> None:
        """From here on, a message on the console that this is found in is no problem."""
        self._expected.append(re.compile(pattern))

    def expect_status(self, status: int) -> None:
        """Chromium itself notes every answer with such a status."""
        self.expect(rf"error: Failed to load resource: the server responded with a status of {status} ")

    def picture(self, page: Page, name: str, *, full: bool = True) -> Path:
        """Write a screenshot to ``.screenshots``, to be looked at."""
        path = PICTURES / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path, full_page=full, animations="disabled")
        return path

    def failed(self, name: str) -> None:
        """A picture of every page that is still open."""
        from playwright.sync_api import Error

        pages = [page for context in self._contexts for page in context.pages]
        for number, page in enumerate(pages):
            with suppress(Error):  # the failure itself is what counts
                self.picture(page, f"failed/{name}-{number}")

    def close(self) -> None:
        """Close all windows."""
        while self._contexts:
            self._contexts.pop().close()
