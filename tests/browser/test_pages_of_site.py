"""The built site as a reader meets it: from the file system, in light and in dark."""

import pytest

from dsv4kernels.lessons import ROOT

SITE, SCREENSHOTS = ROOT / "build" / "site", ROOT / "build" / "screenshots"
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))


@pytest.fixture
def quiet(page):
    """A page that must not complain, and the site."""
    if not PAGES:
        pytest.skip("no site here: `make site` builds it")
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    assert not said


def test_every_page_loads_without_complaint(quiet):
    for name in PAGES:
        quiet.goto(f"file://{SITE / name}")
        if name == "index.html":  # leads on
            quiet.wait_for_url("**/docs/index.html")
        assert quiet.title(), name
        for scheme in ("light", "dark"):
            quiet.emulate_media(color_scheme=scheme)
            if name.endswith(("docs/index.html", "02_constexpr_folding.html", "glossary.html")):
                stem = name.rpartition("/")[2].removesuffix(".html")
                quiet.screenshot(path=SCREENSHOTS / f"site_{stem}_{scheme}.png")
        broken = "[...document.images].filter(i => i.loading != 'lazy' && !i.naturalWidth).length"
        assert quiet.evaluate(broken) == 0, name


def test_search_finds_a_term(quiet):
    quiet.goto(f"file://{SITE / 'docs' / 'index.html'}")
    quiet.get_by_placeholder("Search").first.fill("block table")
    quiet.keyboard.press("Enter")
    quiet.get_by_role("link", name="Glossary > block table").click()
    assert quiet.url.endswith("docs/glossary.html#block-table")
