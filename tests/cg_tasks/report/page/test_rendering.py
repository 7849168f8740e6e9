from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

from report_pages import SVG, demo_runs, page, pair_sample, report, table, task_run

from cg_tasks.report.content import Cell, Column, Figure, Missing, Row, Section, Table
from cg_tasks.report.page.rendering import ASSETS, render, slug
from cg_tasks.report.runs import Problem

BAD = '<img src=x onerror="alert(1)"></script><script>alert(2)</script>{{ 7*7 }}{% raw %}javascript:alert(3)'


class Tags(HTMLParser):
    """Every start tag of a page, and the text of its elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_policy_allows_this_script_and_this_style_and_nothing_else() -> None:
    html = page(demo_runs())
    policy = next(m["content"] for m in Tags(html).all("meta") if m.get("http-equiv"))
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        inline = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert inline
        digest = base64.b64encode(hashlib.sha256(inline[1].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy) and "unsafe" not in str(policy)


def test_needs_nothing_from_outside() -> None:
    tags = Tags(page(demo_runs())).tags
    addresses = [a[name] for _, a in tags for name in ("src", "href", "srcset", "action") if a.get(name)]
    assert addresses and all(str(address).startswith(("#", "data:")) for address in addresses)
    assert not any(name.startswith("on") or name == "style" for _, a in tags for name in a)


def test_text_from_everywhere_is_escaped() -> None:
    evil = Table(BAD, BAD, (Column("x", BAD, BAD),), (Row((Cell(BAD, note=BAD),), BAD),), BAD, (BAD,))
    section = Section(
        BAD, BAD, (BAD,), tables=(evil,), figures=(Figure("f", BAD, BAD, BAD, SVG, b""),), missing=(Missing(BAD, BAD),)
    )
    run = task_run(task="canary_" + BAD)
    html = page([(run, [pair_sample(0, said=BAD)])], report(section, problems=(Problem("error", BAD, BAD),), title=BAD))
    tags = Tags(html)
    assert len([a for a in tags.all("script") if "type" not in a]) == 1
    assert [image["src"][:10] for image in tags.all("img") if image.get("src")] == ["data:image"]  # type: ignore[index]
    assert "49" not in "".join(re.findall(r"<h1>.*?</h1>", html)) and "{{ 7*7 }}" in html


def test_surrogates_cannot_stop_the_page_from_being_written() -> None:
    html = render(report(title="half \ud800 whole \ud83d\ude00"))
    assert b"half \xef\xbf\xbd whole \xf0\x9f\x98\x80" in html.encode("utf-8")


def test_a_cell_shows_number_interval_change_and_marks() -> None:
    html = render(report())
    assert '<td class="best right"><span class="v">0.200</span> <span class="interval">[0.180, 0.220]</span>' in html
    assert '<span class="change good">−50.0% ▼<span class="sr"> desirable</span></span>' in html
    assert '<span class="change bad">−10.0% ▽<span class="sr"> undesirable</span></span>' in html
    assert '<span class="v">0.450</span><span class="star">★</span>' in html


def test_a_missing_cell_is_a_dash_with_its_reason_as_title_and_footnote() -> None:
    html = render(report())
    assert 'title="not evaluated"><span aria-label="missing: not evaluated">–</span><sup class="mark">1</sup>' in html
    assert '<li value="1">not evaluated</li>' in html


def test_headings_say_direction_and_unit() -> None:
    html = render(report())
    assert 'aria-label="lower is better">↓</span><span class="unit">ROUGE-L F1</span>' in html


def test_problems_come_first_and_errors_before_notes() -> None:
    problems = (Problem("note", "b.json", "a newer one counts"), Problem("error", "a.json", "cut off"))
    html = render(report(problems=problems))
    assert html.index('id="problems"') < html.index('id="conceptguard"')
    assert html.index("cut off") < html.index("a newer one counts")
    assert 'id="problems"' not in render(report())


def test_backticks_are_code_and_a_lonely_one_is_itself() -> None:
    html = render(report(Section("s", "S", ("run `a <b>` now", "one ` only"))))
    assert "run <code>a &lt;b&gt;</code> now" in html and "one ` only" in html


def test_every_section_is_in_the_navigation() -> None:
    html = page(demo_runs(), report(Section("one", "One"), Section("two two", "Two")))
    anchors = [a["href"] for a in Tags(html).all("a")]
    assert anchors == ["#main", "#one", "#two-two", "#samples"]
    ids = {attributes.get("id") for _, attributes in Tags(html).tags}
    assert {str(a)[1:] for a in anchors} <= ids


def test_without_samples_there_is_no_browser() -> None:
    assert 'id="browser"' not in render(report())
    assert 'id="browser"' in page()


def test_equal_input_gives_equal_pages() -> None:
    assert page(demo_runs()) == page(demo_runs())


def test_ids_become_fit_for_addresses() -> None:
    assert slug("canary/../x y") == "canary-..-x-y" and slug("../..") == "x" and slug("a-b_1.c") == "a-b_1.c"


def test_the_scripts_put_no_text_in_as_html() -> None:
    for path in ASSETS.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|</", text
        ), path
    assert "</" not in Path(ASSETS / "style.css").read_text(encoding="utf-8")


def test_a_table_without_rows_says_so() -> None:
    assert '<p class="empty">No rows.</p>' in render(report(Section("s", "S", tables=(table(rows=()),))))


def test_sections_of_one_group_stand_under_its_name_in_navigation_and_heading() -> None:
    sections = (Section("o", "Overview"), Section("a", "Arms", group="mine"), Section("d", "Drift", group="mine"))
    html = render(report(*sections, Section("p", "Provenance")))
    nav = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html[html.index("<nav") : html.index("</nav>")]))
    assert nav.strip() == "Overview mine Arms Drift Provenance"
    assert html.count('<li class="group">') == 1
    assert '<span class="kicker">mine<span class="sr">: </span></span>Drift</h2>' in html


def test_a_figure_more_than_twice_as_wide_as_high_gets_the_whole_width() -> None:
    wide = SVG.replace(b"0 0 320 160", b"0 0 640.5 160")
    figures = tuple(
        Figure(name, "T", "c", "a", svg, b"") for name, svg in (("narrow", SVG), ("broad", wide), ("odd", b"<svg/>"))
    )
    html = render(report(Section("s", "S", figures=figures)))
    assert 'width="640" height="160"' in html
    assert re.findall(r'<figure id="figure-(\w+)"( class="wide")?>', html) == [
        ("narrow", ""),
        ("broad", ' class="wide"'),
        ("odd", ""),
    ]
