"""Reports in a browser: every view is opened and used, nothing is fetched, nothing is logged, axe-core finds nothing serious.

`scripts/report-tests.sh` runs it. ORCHESTRION_BLESS=1 rewrites the pictures in `screens`.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import models
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[4]
SCREENS = Path(__file__).parent / "screens"
VIEWS = ["Overview", "Graph", "Timeline", "Roofline", "Memory", "Steps", "Superoptimizer", "Licences"]
MOST_BYTES = 3 << 20
MOST_DIFFERENCE = 5.0
COMMAND = os.environ["ORCHESTRION"]


def orchestrion(*arguments: object) -> str:
    """What the command prints."""
    done = subprocess.run([COMMAND, *map(str, arguments)], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports, by name."""
    folder = tmp_path_factory.mktemp("reports")
    made = {}

    def page(name: str, model: Path, *options: str, explain: tuple[object, ...] = ()) -> None:
        compiled, html = folder / f"{name}.orc", folder / f"{name}.html"
        orchestrion("compile", model, "-o", compiled, "-q", "--no-calibration", *options)
        orchestrion("explain", compiled, "--html", html, *explain)
        made[name] = html

    for name in ("encoder", "chain", "hostile"):
        getattr(models, name)(folder / f"{name}.onnx")
    digits = ROOT / "examples/digits/digits_cnn.onnx"
    attention = ROOT / "docs/walkthrough/causal_attention.onnx"
    gpu = ("--target", "cuda:sm_90", "--nvrtc", os.environ["ORCHESTRION_TEST_NVRTC"])
    page("digits", digits, explain=("--measure", "--trace", folder / "digits.json"))
    page("unfused", digits, "--no-fusion", explain=("--against", folder / "digits.orc"))
    page("cuda", attention, "--precision", "f16", *gpu)
    page("encoder", folder / "encoder.onnx")
    page("chain", folder / "chain.onnx")
    page("hostile", folder / "hostile.onnx")
    return made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium of the system."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        yield started
        started.close()


def difference(shot: Image.Image, path: Path) -> float:
    """How much a picture differs from one in a file, on average over colors from 0 to 255."""
    with Image.open(path) as known:
        return float(np.abs(np.asarray(shot, dtype=float) - np.asarray(known.convert("RGB"), dtype=float)).mean())


class Opened:
    """A report in a browser, with all that went wrong."""

    def __init__(self, browser: Browser, path: Path, scheme: str = "light") -> None:
        self.page: Page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        self.page.set_default_timeout(60_000)
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requested(request.url))
        self.file = path.as_uri()
        self.page.goto(self.file)

    def requested(self, url: str) -> None:
        if url != self.file:
            self.problems.append(f"fetched: {url[:200]}")

    def view(self, name: str) -> None:
        self.page.get_by_role("tab", name=name, exact=True).click()
        self.frame()

    def frame(self) -> None:
        """Waits until what was changed is painted."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def shown(self, selector: str) -> Locator:
        """What matches in the open view."""
        return self.page.locator(f"[role=tabpanel]:not([hidden]) {selector}")

    def status(self) -> str:
        return self.shown("[role=status]").first.inner_text()

    def details(self) -> str:
        return self.page.locator("aside").inner_text()

    def picture(self) -> Image.Image:
        """The open view, coarsely."""
        shot = Image.open(io.BytesIO(self.page.screenshot(clip={"x": 16, "y": 90, "width": 860, "height": 700})))
        return shot.convert("RGB").resize((64, 52), Image.Resampling.BOX)

    def close(self) -> None:
        self.page.close()
        assert self.problems == []


@pytest.mark.parametrize("name", ["digits", "encoder", "chain", "cuda", "hostile", "unfused"])
def test_every_view_works(pages: dict[str, Path], browser: Browser, name: str) -> None:
    opened = Opened(browser, pages[name])
    page = opened.page
    for view in VIEWS:
        opened.view(view)
    # A step is selected in a table, in the graph by keys and by search, and in a chart.
    opened.view("Steps")
    opened.shown("tbody button.link").first.click()
    assert "Operators of the model" in opened.details()
    for column in opened.shown("button.sort").all():
        column.click()
    page.locator("#steps-search").fill("no such step")
    assert opened.status().startswith("0 of 0")
    page.locator("#steps-search").fill("")
    opened.view("Graph")
    canvas = page.locator("canvas.graph")
    canvas.focus()
    for key in ["ArrowDown", "ArrowDown", "Enter", "ArrowDown", "Enter", "Enter", "+", "-", "Shift+ArrowLeft", "0", "ArrowUp"]:
        page.keyboard.press(key)
    assert opened.status() != ""
    canvas.dblclick(position={"x": 300, "y": 80})
    canvas.hover(position={"x": 300, "y": 80})
    page.mouse.wheel(0, -200)
    page.mouse.down()
    page.mouse.move(500, 500)
    page.mouse.up()
    page.locator("#graph-search").fill("a")
    page.locator("#graph-search").press("Enter")
    assert opened.status().startswith("step ")
    for button in ["Zoom in", "Zoom out", "Fit", "Open all blocks", "Close all blocks"]:
        page.get_by_role("button", name=button, exact=True).click()
        opened.frame()
    opened.view("Timeline")
    chart = opened.shown(".u-over")
    box = chart.bounding_box()
    assert box is not None
    chart.click(position={"x": box["width"] / 2, "y": box["height"] - 10})
    for button in opened.shown(".bar button").all():
        button.click()
    page.get_by_role("button", name="Light or dark").click()
    opened.frame()
    assert page.evaluate("window.isOwned") is None
    opened.close()


def test_keys_move_between_views(pages: dict[str, Path], browser: Browser) -> None:
    opened = Opened(browser, pages["digits"])
    page = opened.page
    page.get_by_role("tab", name="Overview").focus()
    for key, selected in [("ArrowRight", "Graph"), ("End", "Licences"), ("ArrowRight", "Overview"), ("ArrowLeft", "Licences"), ("Home", "Overview")]:
        page.keyboard.press(key)
        assert page.locator("[role=tab][aria-selected=true]").inner_text() == selected
    opened.close()


def test_measured_and_unknown_are_told_apart(pages: dict[str, Path], browser: Browser) -> None:
    for name, is_measured in [("digits", True), ("cuda", False)]:
        opened = Opened(browser, pages[name])
        opened.shown("table button.link").first.click()
        details = dict(zip(opened.page.locator("aside dt").all_inner_texts(), opened.page.locator("aside dd").all_inner_texts(), strict=False))
        assert (details["measured here"] == "unknown") != is_measured, details
        opened.view("Timeline")
        text = opened.shown("").inner_text()
        assert ("nothing was measured here" in text) != is_measured, text
        opened.close()


def test_proofs_and_alternatives_are_shown(pages: dict[str, Path], browser: Browser) -> None:
    opened = Opened(browser, pages["cuda"])
    opened.shown("table button.link").first.click()
    text = opened.details()
    for part in ["extracted:", "proved:", "tested:", "Closest alternatives", "registers", "schedule"]:
        assert part in text, text
    opened.view("Superoptimizer")
    assert "Programs that were searched" in opened.shown("").inner_text()
    assert opened.shown("tbody tr").first.locator("td").nth(8).inner_text() == "yes"
    opened.close()


def test_comparisons_come_first(pages: dict[str, Path], browser: Browser) -> None:
    opened = Opened(browser, pages["unfused"])
    assert opened.page.locator("[role=tab][aria-selected=true]").inner_text() == "Comparison"
    changes = opened.shown("table").nth(1).locator("tbody tr")
    assert changes.count() > 1
    opened.close()


def test_hostile_names_are_text(pages: dict[str, Path], browser: Browser) -> None:
    page = pages["hostile"].read_text(encoding="utf-8")
    assert "\0" not in page and "<script>window" not in page and "<img" not in page
    assert len(page) < 500_000
    opened = Opened(browser, pages["hostile"])
    assert "</script><script>" in opened.page.locator("h1").inner_text()
    assert opened.page.evaluate("window.isOwned") is None
    assert opened.page.evaluate("document.querySelectorAll('img').length") == 0
    opened.close()


def test_pages_are_small(pages: dict[str, Path]) -> None:
    for name, path in pages.items():
        assert path.stat().st_size <= MOST_BYTES, f"{name}: {path.stat().st_size} bytes"


def test_traces_have_an_event_for_each_step(pages: dict[str, Path]) -> None:
    folder = pages["digits"].parent
    events = json.loads((folder / "digits.json").read_text())["traceEvents"]
    steps = json.loads(orchestrion("explain", folder / "digits.orc", "--json"))["manifest"]["steps"]
    complete = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in complete] == [step["name"] for step in steps]
    assert all(event["dur"] > 0 and event["args"]["times"] == "measured alone" for event in complete)


@pytest.mark.parametrize(("name", "scheme"), [("cuda", "light"), ("cuda", "dark"), ("unfused", "light")])
def test_axe_finds_nothing_serious(pages: dict[str, Path], browser: Browser, name: str, scheme: str) -> None:
    opened = Opened(browser, pages[name], scheme)
    views = (["Comparison"] if name == "unfused" else []) + VIEWS
    opened.view("Overview")
    opened.shown("table button.link").first.click()
    serious = []
    for view in views:
        opened.view(view)
        for found in Axe().run(opened.page).response["violations"]:
            if found["impact"] in ("serious", "critical"):
                serious.append(f"{view}: {found['id']}: {[node['html'][:120] for node in found['nodes'][:3]]}")
    assert serious == []
    opened.close()


@pytest.mark.parametrize(("name", "view", "scheme"), [("cuda", "Overview", "light"), ("cuda", "Graph", "dark"), ("cuda", "Roofline", "light"), ("chain", "Graph", "light")])
def test_views_look_as_before(pages: dict[str, Path], browser: Browser, name: str, view: str, scheme: str) -> None:
    opened = Opened(browser, pages[name], scheme)
    opened.view(view)
    opened.frame()
    shot = opened.picture()
    path = SCREENS / f"{name}-{view.lower()}-{scheme}.png"
    if os.environ.get("ORCHESTRION_BLESS"):
        shot.save(path)
    # Fonts differ between machines: what is compared is where there is something, and its color.
    assert difference(shot, path) < MOST_DIFFERENCE
    # The comparison can tell: a view without its content, and every other picture, differ by more.
    others = [other for other in SCREENS.glob("*.png") if other != path]
    assert all(difference(shot, other) > MOST_DIFFERENCE for other in others)
    opened.page.evaluate("document.querySelector('[role=tabpanel]:not([hidden])').style.visibility = 'hidden'")
    opened.frame()
    assert difference(opened.picture(), path) > MOST_DIFFERENCE
    opened.close()
