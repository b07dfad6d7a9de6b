"""The operators' pages in the words of the tests, and what must be true of every one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.contrib.admin.utils import quote

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

__all__ = [
    "LIST",
    "begin",
    "confirm",
    "detail",
    "lies",
    "names",
    "refreshed",
    "release",
    "row",
    "tab_to",
    "untranslated",
]

LIST = "/admin/tasklock/lock/"
HAN = re.compile(r"[\u4e00-\u9fff]")
ENGLISH = re.compile(r"[A-Za-z]{3,}")


def detail(name: str, page: str = "change") -> str:
    """The address of the page of one lock, or of an act on it: ``release``, ``ask``."""
    return f"{LIST}{quote(name)}/{page}/"


def row(page: Page, name: str) -> Locator:
    """The line of a lock in the list."""
    return page.locator("#tasklock-table tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def names(page: Page) -> list[str]:
    """The names in the list, from top to bottom."""
    return page.locator("#tasklock-table tbody th a").all_inner_texts()


def begin(page: Page, name: str) -> None:
    """Go from the lock's page to the one that asks whether a release is meant."""
    page.goto(detail(name))
    page.locator("#tasklock-release").click()


def confirm(page: Page, reason: str) -> None:
    """Say why, and do it."""
    page.get_by_label("Reason").fill(reason)
    page.locator("#tasklock-confirm").click()


def release(page: Page, name: str, reason: str) -> None:
    """Both, and it must be so."""
    from playwright.sync_api import expect

    begin(page, name)
    confirm(page, reason)
    expect(page.locator(".messagelist .success")).to_contain_text("was released")


def refreshed(page: Page, seconds: float = 5) -> None:
    """Let time pass in the page, by default until the next refresh: ``page.clock.install()`` comes first."""
    page.clock.fast_forward(round(seconds * 1000) + 100)


def tab_to(page: Page, target: str, most: int = 120) -> None:
    """Press Tab until this is focused, which must be seen."""
    for _press in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("target => document.activeElement.matches(target)", target):
            ring = page.evaluate(_RING)
            assert ring, f"{target}: nothing shows that it is focused"
            return
    raise AssertionError(f"{target} cannot be reached with Tab")


def lies(page: Page, within: str = "#content") -> Sequence[str]:
    """What is wrong with a page for those who use it by keyboard, by ear or with weak eyes; empty if nothing is."""
    page.wait_for_function("document.readyState === 'complete'")  # a page that has just come has no content yet
    found: Sequence[str] = page.evaluate(_AUDIT, within)
    return found


_RING = """() => {
    const style = getComputedStyle(document.activeElement);
    return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
}"""

_AUDIT = r"""(within) => {
    const found = [], root = document.querySelector(within);
    const all = (what, from = root) => [...from.querySelectorAll(what)].filter((one) => one.checkVisibility());
    const says = (one) => (one.getAttribute("aria-label") || one.innerText || one.title || one.alt || "").trim();
    const show = (one) => one.outerHTML.slice(0, 120).replace(/\s+/g, " ");
    for (const field of all("input:not([type=hidden]), select, textarea"))
        if (!field.getAttribute("aria-label") && !field.labels.length) found.push(`no label: ${show(field)}`);
    for (const one of all("a[href], button, summary, meter, progress, nav, [role=search]"))
        if (!says(one)) found.push(`says nothing: ${show(one)}`);
    for (const one of all("img")) if (!one.hasAttribute("alt")) found.push(`no alternative text: ${show(one)}`);
    for (const one of all("th")) if (!one.scope) found.push(`a heading of what? ${show(one)}`);
    const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
    for (const id of new Set(ids.filter((id, place) => ids.indexOf(id) !== place))) found.push(`id twice: ${id}`);
    if (document.scrollingElement.scrollWidth > innerWidth)
        found.push(`the page is ${document.scrollingElement.scrollWidth} wide, the window ${innerWidth}`);

    // Contrast, as WCAG 2 has it: 4.5 to 1, for large text 3 to 1.
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
        .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
    const ground = (one) => {
        for (let at = one; at; at = at.parentElement) {
            const colour = rgba(getComputedStyle(at).backgroundColor);
            if (colour[3] === 255) return colour;
        }
        return rgba(getComputedStyle(document.documentElement).colorScheme.includes("dark") ? "black" : "white");
    };
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const one = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !one.checkVisibility() || one.closest(".tasklock-hidden, option, meter"))
            continue;
        const style = getComputedStyle(one), [a, b] = [light(rgba(style.color)), light(ground(one))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const large = parseFloat(style.fontSize) >= 24;
        if (contrast < (large ? 3 : 4.5)) found.push(`contrast ${contrast.toFixed(1)}: ${show(one)}`);
    }
    return [...new Set(found)];
}"""


def untranslated(page: Page, within: str = "#content-main") -> list[str]:
    """The texts with words but no Chinese in them; names, ids and numbers are not words."""
    texts = page.locator(within).evaluate("""shown => {
        const root = shown.cloneNode(true);
        root.querySelectorAll("wbr").forEach((one) => one.remove());
        root.normalize();
        const found = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
        const names = ".tasklock-code, .tasklock-called, th a, option, textarea, dd, script, #tasklock-history td";
        while (walker.nextNode())
            if (!walker.currentNode.parentElement.closest(names))
                found.push(walker.currentNode.data.trim());
        for (const one of root.querySelectorAll("[aria-label], [placeholder], [data-label]"))
            for (const name of ["aria-label", "placeholder", "data-label"])
                if (one.getAttribute(name)) found.push(one.getAttribute(name));
        return found;
    }""")
    names = re.compile(
        r"videos\.|far-away|video_processing|^a\.module|unending|ends-soon|a-lock-with|t-\d|ann|tavily|a_task_with|videos?:|report:|NotRegistered|xxx|django_tasklock|TASKLOCK|^(fence|epoch|processing)$"
        r"|^(dead|nobody has it|openai)$"
    )
    return [text for text in texts if ENGLISH.search(text) and not HAN.search(text) and not names.search(text)]
