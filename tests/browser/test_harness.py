"""The tests of the pages rest on this: a console that is not empty, or a broken policy, does not go unseen."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Visits
from tests.browser.pages import lies, tab_to

pytest_plugins = ["tests.browser.fixtures"]
pytestmark = pytest.mark.browser

PAGE = """<!doctype html><title>bad</title><link rel="icon" href="data:,"><p style="color: red">styled</p>
<script>window.ran = true</script><script src="/bad.js"></script>"""


def test_nothing_that_a_page_complains_about_goes_unseen(visit: Visits) -> None:
    page = visit()
    policy = page.request.get("/").headers["content-security-policy"]
    page.route("**/bad", lambda route: route.fulfill(
        body=PAGE, content_type="text/html", headers={"content-security-policy": policy}))  # fmt: skip
    page.route("**/bad.js", lambda route: route.fulfill(
        body="console.info('hello'); undefined_function()", content_type="text/javascript"))  # fmt: skip
    page.goto("/bad")
    assert page.evaluate("window.ran") is None
    page.goto("/nowhere/")
    seen, visit.problems = visit.problems, []
    for word in (
        "inline style",
        "inline script",
        "'data:,'",
        "info: hello",
        "undefined_function is not defined",
        "404",
    ):
        assert any(word in one for one in seen), (word, seen)


WRONG = """<!doctype html><html><head><title>wrong</title>
<style>.pale { color: #aaa; background: #fff } .wide { width: 3000px } #bare:focus { outline: none }</style></head>
<body><div id="content"><input name="x"> <a href="/"></a> <img src="data:,">
<table><tr><th>of what</th></tr></table> <p id="two">a</p><p id="two">b</p>
<p class="pale">pale</p><div class="wide">wide</div><button id="bare">x</button></div></body></html>"""
FOUND = "no label, says nothing, alternative text, a heading of what, id twice, contrast 2.3, the page is 30"


def test_what_is_wrong_with_a_page_is_found(visit: Visits) -> None:
    page = visit()
    page.route("**/wrong", lambda route: route.fulfill(body=WRONG, content_type="text/html"))
    page.goto("/wrong")
    found = "\n".join(lies(page))
    for words in FOUND.split(", "):
        assert words in found, found
    with pytest.raises(AssertionError, match="nothing shows that it is focused"):
        tab_to(page, "#bare")
