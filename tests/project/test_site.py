"""The documentation's address, which stands in four files; and links that hold outside of this tree, as on PyPI."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
import yaml

from tests.support.pages import DOCS, ROOT, SITE

READMES = [ROOT / "README.md", ROOT / "README.zh-Hans.md"]
SNIPPET = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)


def links(page: Path) -> set[str]:
    return set(re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")))


def project_urls() -> dict[str, str]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    metadata = setup["metadata"]
    lines = metadata["project_urls"].strip().splitlines()
    return {"url": metadata["url"], **dict(line.split(" = ") for line in lines)}


def text_of(page: Path) -> str:
    return SNIPPET.sub(lambda found: (ROOT / found[1]).read_text("utf-8"), page.read_text("utf-8"))


def missing(address: str) -> str | None:
    """What of this address the site would not have."""
    inside, _, anchor = address.removeprefix(SITE).partition("#")
    if inside.startswith("images/"):
        return None if (DOCS / inside).is_file() else f"{address}: there is no such picture"
    page = DOCS / f"{(inside or 'index.html').removesuffix('.html')}.md"
    if not address.startswith(SITE) or not page.is_file():
        return f"{address}: there is no such page"
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
    return None if not anchor or anchor in slugs else f"{address}: there is no such heading"


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_a_readme_links_to_pages_of_the_site_and_to_nothing_else(readme: Path) -> None:
    found = links(readme)
    assert len(found) > 20
    assert [missing(address) for address in sorted(found) if missing(address)] == []


def test_the_package_links_to_pages_of_the_site() -> None:
    assert set(project_urls()) == {"url", "Documentation", "Changelog", "Questions", "Security"}
    assert [missing(address) for address in project_urls().values() if missing(address)] == []
    assert project_urls()["url"] == SITE


def test_a_link_that_leads_nowhere_is_found() -> None:
    for wrong in ("docs/locks.md", "https://example.com/", f"{SITE}lock.html", f"{SITE}locks.md", f"{SITE}faq.html#no"):
        assert missing(wrong), wrong
    assert missing(f"{SITE}deprecations.html#during-a-deploy") is None


def test_pages_at_the_top_of_the_tree_are_pages_of_the_site() -> None:
    """So that they can be linked to. What they link to themselves must hold there, too."""
    shown = {ROOT / name for page in DOCS.glob("*.md") for name in SNIPPET.findall(page.read_text("utf-8"))}
    assert shown == {
        *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "README.zh-Hans.md", ".github/SECURITY.md"))
    }
    assert [link for page in shown for link in links(page) if not link.startswith("https://")] == []


def test_read_the_docs_builds_what_make_docs_builds() -> None:
    built = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text("utf-8"))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    newest = re.findall(r"Programming Language :: Python :: (3\.\d+)", setup["metadata"]["classifiers"])[-1]
    assert built["build"]["tools"]["python"] == newest
    assert built["mkdocs"] == {"configuration": ".mkdocs.yml", "fail_on_warning": True}
    assert built["python"]["install"] == [{"method": "pip", "path": ".", "extra_requirements": ["docs"]}]
