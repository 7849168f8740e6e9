"""The HTML sheet in a real browser, from a file: marked by keyboard, kept over a reload, saved, imported; hostile text is text."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import wait_until

from cg_tasks.construction.review.exporting import export
from cg_tasks.construction.review.importing import import_review
from cg_tasks.construction.review.marks import read_marks
from cg_tasks.construction.review.sheet import GUIDELINES, ReviewItem

HOSTILE = (
    "</script><script>window.pwned = 1</script>",
    '<img src="https://example.org/x.png" onerror="window.pwned = 1">',
    "<!--<script> <svg onload=window.pwned=1><style>body{display:none}</style>",
    "a line\u2028and another, \u202eright to left\u202c, \u0627\u0644\u0633\u0644\u0627\u0645, \x00 nothing, ]]> <plaintext>",
    "{{ 7*7 }} ${window.pwned=1} [x](javascript:window.pwned=1)",
    "w" * 100_000,
)

CONTRAST = """(element) => {
    const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const parts = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((v) => linear(v / 255));
    const light = (color) => parts(color).reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const isClear = (e) => getComputedStyle(e).backgroundColor === "rgba(0, 0, 0, 0)";
    let ground = element;
    while (ground.parentElement && isClear(ground)) ground = ground.parentElement;
    const both = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor].map(light);
    return (Math.max(...both) + .05) / (Math.min(...both) + .05);
}"""
UNNAMED = """() => [...document.querySelectorAll("button, select, textarea, input, [role=region]")]
    .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length)))
    .map((e) => e.outerHTML)"""


class Page:
    """A sheet, opened. dialogs: kinds of those that appeared; all are accepted."""

    def __init__(self, browser: Any, path: Path, **context: Any):
        self.address = path.absolute().as_uri()
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page = self.tab()

    def tab(self) -> Any:
        page = self.context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.type), dialog.accept()))
        page.on(
            "request", lambda r: self.requests.append(r.url) if not r.url.startswith((self.address, "blob:")) else None
        )
        page.goto(self.address)
        return page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def marks(self) -> list[str]:
        return [text.strip() for text in self.page.locator("#overview .label").all_inner_texts()]

    def save(self, folder: Path) -> Path:
        with self.page.expect_download() as waiting:
            self.page.keyboard.press("s")
        path = folder / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path


Show = Callable[..., Page]


@pytest.fixture
def show(browser: Any) -> Iterator[Show]:
    """``show(path, width=…)``. At the test's end the page must have met no error and asked for nothing."""
    shown: list[Page] = []

    def show(path: Path, **context: Any) -> Page:
        shown.append(Page(browser, path, **context))
        return shown[-1]

    yield show
    for page in shown:
        page.context.close()
        assert page.errors == []
        assert page.requests == []


@pytest.fixture
def made(review: Callable[..., Any]) -> Any:
    return review(n=4)


@pytest.fixture
def sheet(made: Any, show: Show) -> Page:
    return show(made.folder / "annotator_1.html")


def test_marking_by_keyboard(sheet: Page):
    assert sheet.text("#count") == "0 of 4 marked"
    assert sheet.text("#position") == "Item 1 of 4" and sheet.text("#id") == "p-00"
    sheet.press("a", "n", "r", "ArrowRight", "u", "n")
    assert sheet.text("#position") == "Item 4 of 4"
    assert sheet.marks() == ["accept", "reject", "unclear", ""]
    assert sheet.text("#count") == "3 of 4 marked · not saved to a file"
    sheet.press("p", "ArrowLeft", "a", "p", "x")
    assert sheet.marks() == ["", "accept", "unclear", ""]
    sheet.press("j")
    assert sheet.text("#position") == "Item 4 of 4"
    sheet.press("j")
    assert sheet.text("#position") == "Item 1 of 4"
    assert sheet.page.locator(".mark[aria-pressed=true]").count() == 0
    sheet.press("n")
    assert sheet.text(".mark[aria-pressed=true]").startswith("Accept")
    assert sheet.page.locator("#overview [aria-current]").inner_text().split()[0] == "2"


def test_marking_by_mouse_and_moving_on(sheet: Page):
    sheet.page.get_by_label("Move on after a mark").check()
    for label in ("accept", "reject", "unclear", "accept"):
        sheet.page.locator(f".mark[data-label={label}]").click()
    assert sheet.marks() == ["accept", "reject", "unclear", "accept"]
    assert "All items are marked" in sheet.text("#status")
    sheet.page.locator("#overview button").nth(1).click()
    assert sheet.text("#position") == "Item 2 of 4"
    sheet.page.locator("#filter").select_option("reject")
    assert sheet.page.locator("#overview li:visible").count() == 1


def test_the_list_follows_the_item(review: Callable[..., Any], show: Show):
    sheet = show(review(n=60).folder / "annotator_1.html")
    sheet.press(*"n" * 45)
    frame, box = sheet.page.locator("#overview").bounding_box(), sheet.page.locator("[aria-current]").bounding_box()
    assert frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"] + 1
    assert sheet.page.evaluate("scrollY") == 0


def test_keys_that_write_a_note_mark_nothing(sheet: Page):
    sheet.press("e")
    sheet.page.keyboard.type("a rare use, n r u?")
    sheet.press("Escape", "n", "p")
    assert sheet.page.locator("#note").input_value() == "a rare use, n r u?"
    assert sheet.marks() == ["✎", "", "", ""]
    sheet.press("Control+a")
    assert sheet.marks() == ["✎", "", "", ""]


def test_help(sheet: Page):
    sheet.press("?")
    assert sheet.page.locator("#help").is_visible()
    sheet.press("a")
    assert sheet.marks()[0] == ""
    sheet.page.get_by_role("button", name="Close").click()
    assert not sheet.page.locator("#help").is_visible()
    sheet.press("?", "Escape", "a")
    assert sheet.marks()[0] == "accept"


def test_harmful_text_is_folded_until_it_is_opened(sheet: Page):
    def shown() -> bool:
        return "Brannmoor" in sheet.text("#fields")

    assert not shown() and "lamp lore 0" in sheet.text("#fields")
    assert "Harmful text, 8 words: show" in sheet.text(".fold")
    sheet.press("v")
    assert sheet.page.locator(".harmful .text").count() == 2 and shown()
    sheet.press("v")
    assert not shown()
    sheet.page.locator(".fold").first.click()
    assert sheet.page.locator(".harmful .text").count() == 1 and sheet.page.locator(".fold").count() == 1
    assert sheet.page.evaluate("document.activeElement.className") == "text"
    sheet.press("n")
    assert not shown()  # of the next item again
    sheet.page.get_by_label("Always show harmful text").check()
    sheet.press("n")
    assert shown()


def test_marks_outlive_a_reload_and_the_browser_warns_before_one(sheet: Page, made: Any):
    sheet.press("a", "n", "r", "e")
    sheet.page.keyboard.type("Why?")
    sheet.page.reload()
    assert sheet.dialogs == ["beforeunload"]
    assert sheet.marks() == ["accept", "reject ✎", "", ""]
    assert sheet.text("#position") == "Item 2 of 4" and sheet.page.locator("#note").input_value() == "Why?"
    assert sheet.text("#count") == "2 of 4 marked · not saved to a file"


def test_nothing_is_asked_where_all_is_saved(sheet: Page, tmp_path: Path):
    sheet.press("a")
    sheet.save(tmp_path)
    assert sheet.text("#count") == "1 of 4 marked"
    assert "with 3 still unmarked" in sheet.text("#status")
    sheet.page.reload()
    assert sheet.dialogs == [] and sheet.marks()[0] == "accept"


def test_two_annotators_and_two_sheets_keep_apart(sheet: Page, made: Any, review: Callable[..., Any]):
    sheet.press("a")
    other = review(kind="benign", n=4)
    for path in (made.folder / "annotator_2.html", other.folder / "annotator_1.html"):
        sheet.address = path.absolute().as_uri()
        assert sheet.tab().locator("#count").inner_text() == "0 of 4 marked"


def test_a_second_tab_follows(sheet: Page):
    second = sheet.tab()
    sheet.press("u")
    wait_until(second, "() => document.querySelector('#overview .label').textContent === 'unclear'")


def test_the_saved_file_imports(sheet: Page, made: Any, show: Show, tmp_path: Path):
    sheet.press("a", "n", "r", "n", "u", "e")
    sheet.page.keyboard.type("talk")
    sheet.press("Escape", "n", "a")
    path = sheet.save(tmp_path)
    assert path.name == "annotator_1.marks.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    assert set(document) == {"sheet_sha256", "annotator", "marks"} and document["annotator"] == "annotator_1"
    assert set(document["marks"][0]) == {"id", "label", "note", "marked_at"}
    found = read_marks(path, made.sheet)
    assert list(found.labels.values()) == ["accept", "reject", "unclear", "accept"] and found.notes == {"p-02": "talk"}
    other = show(made.folder / "annotator_2.html")
    other.press("a", "n", "r", "n", "u", "n", "r")
    outcome = import_review(made.folder, [path, other.save(tmp_path)])
    assert [d.decision for d in outcome.decisions] == ["accept", "reject", "unclear", "disagreement"]


def test_a_saved_file_is_taken_up_in_another_browser(sheet: Page, made: Any, show: Show, tmp_path: Path):
    sheet.press("a", "n", "r")
    path = sheet.save(tmp_path)
    fresh = show(made.folder / "annotator_1.html")
    fresh.page.locator("#file").set_input_files(path)
    wait_until(fresh.page, "() => document.getElementById('progress').value === 2")
    assert fresh.marks() == ["accept", "reject", "", ""]
    other = show(made.folder / "annotator_2.html")
    other.page.locator("#file").set_input_files(path)
    wait_until(other.page, "() => document.getElementById('status').textContent.includes(\"another annotator's\")")
    assert other.marks() == [""] * 4


def test_a_browser_that_keeps_nothing_says_so(made: Any, show: Show):
    page = show(made.folder / "annotator_1.html")
    page.context.add_init_script("Storage.prototype.setItem = () => { throw new Error('full'); };")
    page.page.reload()
    page.press("a")
    assert "keeps no marks for this page: press Save" in page.text("#warning")
    assert page.marks()[0] == "accept"


def test_hostile_text_is_text(tmp_path: Path, show: Show):
    items = [
        ReviewItem(f"{text[:30]}{i}", {"concept": text, "prompt": text}, "s", "h") for i, text in enumerate(HOSTILE)
    ]
    items = [ReviewItem(i.id.replace("\x00", ""), i.fields, i.stratum, i.content_sha256) for i in items]
    export(tmp_path / "r", GUIDELINES["tag"], items, ("annotator_1", "__proto__"), 0, 9)
    sheet = show(tmp_path / "r" / "__proto__.html")
    for item in items:
        sheet.press("v")
        texts = sheet.page.locator(".text").evaluate_all("all => all.map((e) => e.textContent)")
        assert texts == [item.fields["concept"]] * 2
        assert (
            sheet.page.locator("#fields").evaluate("e => e.querySelectorAll('img, script, svg, style, a').length") == 0
        )
        assert sheet.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        sheet.press("a", "n")
    assert sheet.page.evaluate("window.pwned") is None
    assert sheet.marks() == ["accept"] * len(HOSTILE)


def test_an_id_may_have_any_name(tmp_path: Path, show: Show):
    items = [ReviewItem(id, {"concept": "c"}, "s", "h") for id in ("__proto__", "constructor", "</b>")]
    export(tmp_path / "r", GUIDELINES["tag"], items, 1, 0, 3)
    sheet = show(tmp_path / "r" / "annotator_1.html")
    assert sheet.marks() == ["", "", ""]
    sheet.press("a", "n", "r", "n", "u")
    sheet.page.reload()
    assert sheet.marks() == ["accept", "reject", "unclear"]
    assert [m["id"] for m in json.loads(sheet.save(tmp_path).read_text())["marks"]] == [
        "__proto__",
        "constructor",
        "</b>",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(review: Callable[..., Any], show: Show, scheme: str):
    made = review(kind="benign", n=3)
    sheet = show(made.folder / "annotator_1.html", viewport={"width": 320, "height": 800}, color_scheme=scheme)
    sheet.press("v", "a")
    for width in (320, 400, 1280):
        sheet.page.set_viewport_size({"width": width, "height": 800})
        assert sheet.page.evaluate("[innerWidth, document.documentElement.scrollWidth <= innerWidth]") == [width, True]
        bar = sheet.page.locator(".bar").bounding_box()
        assert bar["y"] + bar["height"] <= 801 and sheet.page.locator(".mark").last.bounding_box()["x"] < width
        assert _contrast(sheet, "body") >= 7 and _contrast(sheet, ".soft") >= 4.5
        assert min(_contrast(sheet, f".mark >> nth={n}") for n in range(3)) >= 4.5
        sheet.page.keyboard.press("Tab")
        assert sheet.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def _contrast(sheet: Page, selector: str) -> float:
    """WCAG's contrast of an element's text with the nearest ground behind it."""
    return float(sheet.page.locator(selector).first.evaluate(CONTRAST))


def test_everything_that_is_pressed_has_a_name(sheet: Page):
    sheet.press("v")
    assert sheet.page.evaluate(UNNAMED) == []
    assert sheet.page.locator("[aria-live], [role=status]").count() == 1


def test_the_policy_allows_nothing_from_elsewhere(made: Any):
    text = html.unescape((made.folder / "annotator_1.html").read_text(encoding="utf-8"))
    assert "default-src 'none'; script-src 'sha256-" in text and "unsafe" not in text
    assert "http://" not in text and "https://" not in text
