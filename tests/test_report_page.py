"""The report in a real browser: nothing asked of the network, no error, every figure visible, the slider moves."""

from __future__ import annotations

import shutil

import pytest

from attsvm.experiments import reproduce

pytestmark = pytest.mark.browser
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a small run, open, with what it logged and asked for."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the browser test needs: pip install -e '.[browser]'")
    if CHROMIUM is None:
        pytest.skip("the browser test needs Chromium or Chrome on the PATH")
    out = tmp_path_factory.mktemp("page")
    (out / "local.toml").write_text('experiment = "local"\n[spec]\nseeds = 3\nlong_steps = 2000\nlonger = 1\n')
    made = reproduce("paths-1", spec=out / "local.toml", out=out, progress=False)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.logged, page.asked = [], []
        page.on("console", lambda message: page.logged.append((message.type, message.text)))
        page.on("pageerror", lambda error: page.logged.append(("error", str(error))))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto((made.out / "report.html").resolve().as_uri())
        page.wait_for_selector(".js-plotly-plot .slider-group", state="attached")
        yield page
        browser.close()


def test_every_figure_is_visible(page):
    sizes = page.eval_on_selector_all(
        "figure", "all => all.map(one => { const box = one.getBoundingClientRect(); return [box.width, box.height]; })"
    )
    assert len(sizes) >= 4  # two drawn, two interactive
    assert all(width > 400 and height > 200 for width, height in sizes)
    boxes = page.eval_on_selector_all(
        "figure", "all => all.map(one => one.querySelectorAll('svg path, svg line, svg use').length)"
    )
    assert min(boxes) > 20


def test_claims_come_first(page):
    table, figure = (page.query_selector(name).bounding_box()["y"] for name in ("table", "figure"))
    assert table < figure
    assert "paths-1/turns-W" in page.inner_text("table")


def test_the_slider_moves_the_paths(page):
    drawn = page.locator("#paths-1-steps-closer .scatterlayer path.js-line")
    lengths = [drawn.nth(j).evaluate("line => line.getTotalLength()") for j in range(drawn.count())]
    rail = page.locator("#paths-1-steps-closer .slider-rail-touch-rect")
    rail.scroll_into_view_if_needed()
    box = rail.bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + box["height"] / 2)
    page.wait_for_timeout(500)
    after = [drawn.nth(j).evaluate("line => line.getTotalLength()") for j in range(drawn.count())]
    assert len(after) == len(lengths) == 8  # two queries: the lines of both SVMs, the paths of both forms
    assert after[:4] == lengths[:4]
    assert all(0 < short < 0.5 * whole for short, whole in zip(after[4:], lengths[4:], strict=True))


def test_a_point_names_its_seed(page):
    plot = page.query_selector("#local-runs-closer")
    plot.scroll_into_view_if_needed()
    point = page.query_selector("#local-runs-closer .scatterlayer .point")
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#local-runs-closer .hoverlayer .hovertext")
    assert "data: " in page.text_content("#local-runs-closer .hoverlayer")


def test_nothing_went_wrong_and_nothing_was_asked_for(page):
    assert [entry for entry in page.logged if entry[0] in ("error", "warning")] == []
    assert page.asked == [page.url]
    assert page.url.startswith("file:")
