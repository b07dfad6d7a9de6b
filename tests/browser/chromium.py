"""Chromium in a thread of its own, and what its pages complain about.

Playwright's synchronous interface keeps an event loop running in the thread that uses it: Django's ORM refuses to
work in such a thread, and so does ``asyncio.run``. Therefore whole tests move over: see ``fixtures``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

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

    def __init__(self, chromium: Chromium, address: str, session: str) -> None:
        self.address = address
        self.problems: list[str] = []
        """Everything on a console: messages of any level, uncaught errors, violations of the policy."""
        self._chromium = chromium
        self._session = session
        self._contexts: list[BrowserContext] = []
        self._expected: list[str] = []

    def __call__(
        self, *, scripts: bool = True, dark: bool = False, width: int = 1280, language: str = "en", address: str = ""
    ) -> Page:
        """A new page in a window of its own, of the operator, who is logged in."""
        address = address or self.address
        context = self._chromium.browser.new_context(
            base_url=address,
            java_script_enabled=scripts,
            color_scheme="dark" if dark else "light",
            viewport={"width": width, "height": 800},
            locale=language,
            reduced_motion="reduce",
        )
        self._contexts.append(context)
        context.set_default_timeout(SECONDS * 1000)
        context.add_cookies([{"name": "sessionid", "value": self._session, "url": address}])
        context.on("console", self._heard)
        context.on("weberror", lambda error: self.problems.append(f"uncaught: {error.error}"))
        return context.new_page()

    def run(self, test: Callable[[], object], name: str) -> None:
        """Run a test in the browser's thread; if it fails, with a picture of each page that is open."""

        def pictured() -> None:
            try:
                test()
            except BaseException:
                pages = [page for context in self._contexts for page in context.pages]
                for number, page in enumerate(pages):
                    with suppress(Exception):  # the failure itself is what counts
                        self.picture(page, f"failed/{name}-{number}")
                raise

        self._chromium.do(pictured)

    def _heard(self, message: ConsoleMessage) -> None:
        said = f"{message.type}: {message.text} ({message.location.get('url')})"
        if not any(expected in said for expected in self._expected):
            self.problems.append(said)

    def expect_status(self, status: int) -> None:
        """From here on such an answer, which Chromium notes on the console, is no problem."""
        self._expected.append(f"error: Failed to load resource: the server responded with a status of {status} ")

    def picture(self, page: Page, name: str, *, full: bool = True) -> Path:
        """Write a screenshot to ``.screenshots``, to be looked at."""
        path = PICTURES / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path, full_page=full, animations="disabled")
        return path

    def close(self) -> None:
        """Close all windows."""
        while self._contexts:
            self._contexts.pop().close()
