"""The example's own settings, and a second admin site beside its first."""

from __future__ import annotations

from config.settings import *  # noqa: F403

ROOT_URLCONF = "tests.browser.stock_urls"
