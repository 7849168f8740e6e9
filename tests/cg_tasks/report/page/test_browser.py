"""The page in a real browser. ``show`` (conftest.py) also asserts that there was no error, no dialog and no request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from browser import Opened, wait_until
from report_pages import (
    CANARY,
    canary_sample,
    checkpoint,
    demo_page,
    demo_runs,
    page,
    pair_sample,
    report,
    table,
    task_run,
)

from cg_tasks.report.content import Cell, Column, Row, Section, Table
from cg_tasks.report.page.samples_data import pack
from cg_tasks.report.results.texts import SampleArm
from cg_tasks.report.runs import Problem

Show = Callable[..., Opened]
PAYLOADS = (
    "</script><script>window.pwned = 1</script>",
    '<img src="https://example.org/x.png" onerror="window.pwned = 1">',
    "<svg onload=window.pwned=1><style>body{display:none}</style>",
    "{{ 7*7 }} {% for x in y %} ${window.pwned=1} <%= 1 %>",
    "[click](javascript:window.pwned=1) <a href='javascript:window.pwned=1'>x</a>",
    "half \ud800 of a pair, \u202eright to left, \x00 nothing, \u2028 a line",
    "<!-- chunks --> ]]> <plaintext>",
)


def key(index: int) -> str:
    runs = dict(((run.path, run.task), samples) for run, samples in demo_runs())
    return str(pack([run for run, _ in demo_runs()], lambda run: runs[run.path, run.task]).index[index]["key"])


def units(opened: Opened) -> list[str]:
    return [text.split()[0] for text in opened.texts(".item > span:first-child")]


def count(opened: Opened) -> str:
    return opened.text(".count [role=status]")


def wait_for(opened: Opened, words: str) -> None:
    wait_until(opened.page, "(w) => document.querySelector('.count span')?.textContent === w", words)


@pytest.fixture
def canary(show: Show) -> Opened:
    opened = show(demo_page(), fragment=f"#sample/{key(2)}")
    wait_for(opened, "6 of 6 samples")
    return opened


@pytest.fixture
def pairs(show: Show) -> Opened:
    opened = show(demo_page(), fragment=f"#sample/{key(1)}")
    wait_for(opened, "8 of 8 samples")
    return opened


def test_opens_with_tables_figures_and_a_closed_browser(show: Show) -> None:
    opened = show(demo_page())
    assert opened.text("h1") == "A report"
    assert opened.page.evaluate(
        "[...document.images].filter((i) => i.src).every((i) => i.complete && i.naturalWidth > 0)"
    )
    assert opened.page.evaluate("location.hash") == ""


@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_no_width_makes_the_page_scroll_sideways(show: Show, width: int) -> None:
    wide = Table(
        "wide",
        "A table with a very_long_name_without_a_space_" + "x" * 80,
        tuple(Column(f"c{i}", f"column {i}") for i in range(30)),
        (Row(tuple(Cell("0.1234", 0.1234) for _ in range(30))),),
    )
    problem = Problem("error", "/results/" + "folder/" * 40, "m" * 300)
    of = report(*report().sections, Section("w", "Wide", ("t" * 300,), tables=(wide,)), problems=(problem,))
    long = pair_sample(0, said="y" * 5000, query="q" * 500)
    runs = [*demo_runs(), (task_run(of=checkpoint("rmu")), [long])]
    opened = show(page(runs, of), width=width, fragment=f"#sample/{key(2)}/author-003")
    wait_for(opened, "6 of 6 samples")
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    box = opened.page.locator("#table-wide .scroll").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    first = opened.page.locator("#table-wide tbody th").first
    before = first.bounding_box()["x"]
    opened.page.evaluate("document.querySelector('#table-wide .scroll').scrollLeft = 200")
    assert first.bounding_box()["x"] == before


def test_text_is_readable_on_both_grounds(show: Show) -> None:
    """Contrast of ordinary, soft and marked text against what is behind it: WCAG's 4.5."""
    ratio = """(pair) => {
      const values = pair.map((name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim());
      const light = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const [a, b] = values.map(light).sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05);
    }"""
    inks = [("--ink", g) for g in ("--paper", "--card", "--sunk", "--trace", "--mark", "--found", "--bad-wash")]
    inks += [(ink, g) for ink in ("--soft", "--link", "--good", "--bad") for g in ("--paper", "--card", "--sunk")]
    inks += [("--soft", "--trace"), ("--soft", "--bad-wash"), ("--bad", "--bad-wash"), ("--soft", "--good-wash")]
    opened = show(page())
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        low = {pair: r for pair in inks if (r := opened.page.evaluate(ratio, list(pair))) < 4.5}
        assert low == {}, scheme


def test_payloads_stay_text(show: Show) -> None:
    said = "\n".join(PAYLOADS)
    arm = SampleArm("auto", f"<think>{said}</think>{said}", said, said, False, {}, None, said)
    sample = pair_sample(0, query=said, target=said, prompt=said, concept=PAYLOADS[0], id=PAYLOADS[1], arms=(arm,))
    run = task_run("conceptguard_" + PAYLOADS[0], of=dataclasses.replace(checkpoint(), base=PAYLOADS[1]))
    evil = table(title=PAYLOADS[0], caption=PAYLOADS[1], notes=PAYLOADS)
    opened = show(page([(run, [sample, pair_sample(1)])], report(Section("s", PAYLOADS[2], PAYLOADS, tables=(evil,)))))
    opened.page.locator("#browser").scroll_into_view_if_needed()
    wait_for(opened, "2 of 2 samples")
    for details in opened.page.locator(".detail details summary").all():
        details.click()
    seen = said.replace("\ud800", "\ufffd")
    holding = (
        "(text) => [...document.querySelectorAll('.detail pre')].filter((e) => e.textContent.includes(text)).length"
    )
    # Query, target, prefill, trace, answer, and the raw generation that was opened.
    wait_until(opened.page, f"(text) => ({holding})(text) === 6", seen)
    assert opened.page.evaluate("window.pwned") is None
    assert (
        opened.page.evaluate("document.querySelectorAll('main a[href^=javascript], main svg, #samples img').length")
        == 0
    )


def test_a_huge_line_is_cut_until_asked_for(show: Show) -> None:
    opened = show(page([(task_run(), [pair_sample(0, said="z" * 300_000)])]))
    opened.page.locator("#browser").scroll_into_view_if_needed()
    wait_for(opened, "1 of 1 samples")
    assert len(opened.text(".text.answer pre")) == 20_000
    opened.page.get_by_role("button", name="Show all 300,000 characters").click()
    assert len(opened.text(".text.answer pre")) == 300_000
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 1000


def test_trace_and_answer_stand_apart_and_the_canary_is_marked_in_both(canary: Opened) -> None:
    arms = canary.page.locator(".detail .arm")
    assert [text.split("\n")[0] for text in arms.all_inner_texts()] == ["auto", "bio"]
    auto, bio = arms.nth(0), arms.nth(1)
    assert auto.locator(".trace pre").inner_text() == f"I think {CANARY}".replace("owls audited", "owls\naudited")
    assert auto.locator(".answer pre").inner_text() == f"I think {CANARY}"
    assert auto.locator(".trace mark.canary").count() == auto.locator(".answer mark.canary").count() == 1
    assert "● hit" in auto.inner_text()
    assert bio.locator(".trace").count() == 0 and "A fact." in bio.locator(".prefill").inner_text()
    raw = auto.get_by_text("As the model wrote it")
    raw.click()
    text = "I think " + CANARY
    assert (
        auto.locator(".raw pre").text_content()
        == f"<think>\n{text.replace('owls audited', 'owls' + chr(10) + 'audited')}\n</think>\n\n{text}"
    )


def test_filters_by_arm_hit_and_trace_alone(canary: Opened) -> None:
    choose = canary.page.locator
    choose("[data-filter=hit]").select_option("hit")
    assert units(canary) == ["author-000", "author-001", "author-003"]  # auto: 0 and 3; bio: 0 and 1
    choose("[data-filter=arm]").select_option("bio")
    assert units(canary) == ["author-000", "author-001"]
    choose("[data-filter=hit]").select_option("miss")
    assert count(canary) == "4 of 6 samples"
    choose("[data-filter=hit]").select_option("bypass")
    assert units(canary) == ["author-002", "author-004"]  # trace: 0, 2, 4; answer: 0, 3
    assert "hit=bypass" in canary.page.evaluate("location.hash")
    canary.page.get_by_role("button", name="Clear filters").click()
    assert count(canary) == "6 of 6 samples"


def test_filters_by_concept_intent_score_and_text(pairs: Opened) -> None:
    filled = pairs.page.locator
    filled("[data-filter=concept]").select_option("ward reading")
    assert units(pairs) == ["mini-001/harmful", "mini-001/benign", "mini-003/harmful", "mini-003/benign"]
    filled("[data-filter=intent]").select_option("benign")
    filled("[data-filter=metric]").select_option("help_score")
    filled("[data-filter=min]").fill("0.5")
    wait_for(pairs, "1 of 8 samples")
    assert units(pairs) == ["mini-003/benign"]
    pairs.page.get_by_role("button", name="Clear filters").click()
    filled("[data-filter=order]").select_option("down")
    assert units(pairs)[0].startswith("mini-003")
    filled("[data-filter=q]").fill("SAYS benign 2")
    wait_for(pairs, "1 of 8 samples")
    assert pairs.texts(".detail mark.found") == ["says benign 2"]
    filled("[data-filter=q]").fill("nobody said this")
    wait_for(pairs, "0 of 8 samples")
    assert "No sample passes these filters." in pairs.text(".detail")
    assert pairs.page.locator("[data-filter=author]").is_hidden()


def test_harmful_text_is_not_in_the_page_until_it_is_asked_for(pairs: Opened) -> None:
    body = lambda: pairs.page.locator("#browser").text_content()  # noqa: E731
    assert "harmful query" not in body() and "says harmful" not in body() and "seen" not in body()
    pairs.page.get_by_role("button", name="Show harmful text").click()
    assert "npo says harmful 0" in body() and "harmful query 0" in body() and "harmful query 1" not in body()
    pairs.page.keyboard.press("j")
    pairs.page.keyboard.press("j")
    assert "mini-001" in pairs.text(".detail h3") and "says harmful" not in pairs.text(".detail")
    pairs.page.get_by_label("Show harmful text until this page is closed").check()
    assert "npo says harmful 1" in body() and "harmful query 3" in body()
    pairs.page.get_by_label("Show harmful text until this page is closed").uncheck()
    assert "says harmful 1" not in body()


def test_canary_texts_are_not_folded(canary: Opened) -> None:
    assert canary.page.locator(".fold").count() == 0
    assert canary.page.get_by_label("Show harmful text until this page is closed").is_hidden()


def test_the_list_is_moved_through_by_keys(pairs: Opened) -> None:
    chosen = lambda: pairs.text(".item[aria-selected=true] > span:first-child").split()[0]  # noqa: E731
    pairs.page.locator("#sample-list").focus()
    for pressed, expected in (
        *(("ArrowDown", "mini-000/benign"), ("j", "mini-001/harmful"), ("k", "mini-000/benign")),
        *(("End", "mini-003/benign"), ("ArrowDown", "mini-003/benign"), ("Home", "mini-000/harmful")),
    ):
        pairs.page.keyboard.press(pressed)
        assert chosen() == expected
    active = pairs.page.locator("#sample-list").get_attribute("aria-activedescendant")
    assert pairs.page.locator(f"#{active}").get_attribute("aria-selected") == "true"
    pairs.page.locator("[data-filter=q]").focus()
    pairs.page.keyboard.press("j")
    assert chosen() != "mini-001/harmful" or pairs.page.locator("[data-filter=q]").input_value() == "j"


def test_everything_is_reached_by_tab_and_the_focus_is_seen(show: Show) -> None:
    opened = show(demo_page(), width=400)
    reached: list[str] = []
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        reached.append(
            opened.page.evaluate("""() => {
              const e = document.activeElement, style = getComputedStyle(e);
              if (e === document.body) return "end|solid";
              return [e.className || e.id || e.dataset.filter || e.textContent.trim().slice(0, 20), style.outlineStyle].join('|');
            }""")
        )
    names = [name.split("|")[0] for name in reached]
    assert names[0] == "skip"
    for part in ("scroll", "enlarge", "Markdown", "sample-task", "sample-checkpoint", "list"):
        assert part in names, part
    assert {name.split("|")[1] for name in reached if not name.startswith("|")} >= {"solid"}
    assert [name for name in reached if name.endswith("|none")] == []


def test_a_link_opens_its_sample_with_its_filters(show: Show) -> None:
    link = f"#sample/{key(1)}/mini-002%2Fbenign?intent=benign&beside={key(0)}"
    opened = show(demo_page(), fragment=link)
    wait_for(opened, "4 of 8 samples")
    assert "mini-002" in opened.text(".detail h3")
    wait_until(opened.page, "document.querySelectorAll('.detail .whose').length === 2")
    assert opened.texts(".detail .whose") == ["tiny · NPO, K=4 · seed 0", "tiny · base"]
    assert opened.texts(".detail .answer pre") == ["npo says benign 2", "base says benign 2"]
    assert opened.page.evaluate("location.hash") == link
    opened.page.evaluate(f"location.hash = '#sample/{key(2)}/author-004'")
    wait_for(opened, "6 of 6 samples")
    assert "author-004" in opened.text(".detail h3")


def test_a_link_into_another_report_falls_back_to_the_first_run(show: Show) -> None:
    opened = show(demo_page(), fragment="#sample/ffffffff/%E0%A4%A?x=1&hit=%")
    wait_for(opened, "8 of 8 samples")


def test_another_checkpoint_keeps_the_document_and_what_it_has_not_is_said(show: Show) -> None:
    fewer = (task_run(of=checkpoint("rmu")), [pair_sample(0)])
    opened = show(page([*demo_runs(), fewer]), fragment=f"#sample/{key(1)}/mini-003%2Fbenign")
    wait_for(opened, "8 of 8 samples")
    opened.page.locator("#sample-compare").select_option(label="tiny · RMU, K=4 · seed 0")
    opened.page.get_by_text("This document was not evaluated there.").wait_for()
    opened.page.locator("#sample-checkpoint").select_option(label="tiny · base")
    opened.page.get_by_text("base says benign 3").wait_for()
    opened.page.locator("#sample-task").select_option(label="canary_prefill")
    wait_for(opened, "6 of 6 samples")
    assert opened.page.locator("#sample-checkpoint option").count() == 1


def test_only_rows_in_sight_are_in_the_page(show: Show) -> None:
    many = [pair_sample(i) for i in range(5000)]
    opened = show(page([(task_run(), many)]))
    opened.page.locator("#browser").scroll_into_view_if_needed()
    wait_for(opened, "5,000 of 5,000 samples")
    assert 5 < opened.page.locator(".item").count() < 60
    opened.page.locator("#sample-list").focus()
    opened.page.keyboard.press("End")
    assert "mini-4999" in opened.text(".detail h3")
    assert opened.page.locator(".item[aria-selected=true]").is_visible()
    assert opened.page.locator(".item").count() < 60


def test_copies_a_table_in_three_formats(show: Show) -> None:
    opened = show(page(), permissions=["clipboard-read", "clipboard-write"])
    for name, start in (
        ("Markdown", "**Forgetting and utility**"),
        ("CSV", "block,model,harmqa"),
        ("LaTeX", "% needs"),
    ):
        opened.page.get_by_role("button", name=name).click()
        wait_until(opened.page, f"document.querySelector('#said').textContent === 'Copied: {name}'")
        assert opened.page.evaluate("navigator.clipboard.readText()").startswith(start)


def test_a_figure_gets_larger_and_escape_closes_it(show: Show) -> None:
    opened = show(page())
    opened.page.locator(".enlarge").click()
    assert (
        opened.page.locator("dialog img").bounding_box()["width"]
        > opened.page.locator(".enlarge img").bounding_box()["width"]
    )
    opened.page.keyboard.press("Escape")
    assert not opened.page.locator("dialog").is_visible()


def test_runs_without_samples_say_what_to_do(show: Show) -> None:
    opened = show(page([(task_run(samples=None), [])]))
    opened.page.locator("#browser .none").wait_for()
    assert "--log_samples" in opened.text("#browser .none")


def test_on_paper_the_checks_are_open_and_the_samples_away(show: Show) -> None:
    opened = show(demo_page())
    opened.page.emulate_media(media="print")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.get_by_text("Is it invariant?").is_visible()
    assert not opened.page.locator("#samples").is_visible()
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not opened.page.get_by_text("Is it invariant?").is_visible()


def test_without_scripts_everything_but_the_samples_is_there(show: Show) -> None:
    opened = show(demo_page(), java_script_enabled=False)
    assert opened.page.locator("#table-table2 tbody tr").count() == 6
    assert "need JavaScript" in opened.text("#samples")
    assert not opened.page.locator(".copy").first.is_visible()


def test_teacher_forcing_shows_tokens_and_numbers(show: Show) -> None:
    arm: Any = SampleArm("bio", '{"logprobs": [-1.0]}', "", "the tokens", scores={"logprob": -1.0, "top1": 0.5})
    sample = dataclasses.replace(canary_sample(0, True, True, True), arms=(arm,), scores={"top1_bio": 0.5})
    opened = show(page([(task_run("canary_teacher_forced"), [sample])]))
    opened.page.locator("#browser").scroll_into_view_if_needed()
    wait_for(opened, "1 of 1 samples")
    assert opened.text(".answer h4").lower() == "scored tokens"
    assert "logprob −1" in opened.text(".arm .scores") and opened.page.locator(".arm .trace").count() == 0


def test_the_navigation_leads_to_each_section_and_shows_where_one_is(show: Show) -> None:
    sections = [
        dataclasses.replace(report().sections[0], id=f"s{i}", title=f"Part {i}", group="mine") for i in range(8)
    ]
    opened = show(page(demo_runs(), report(*sections)), width=400, fragment="#samples")
    wait_for(opened, "8 of 8 samples")
    top = "(id) => document.getElementById(id).getBoundingClientRect().top"
    assert 0 <= opened.page.evaluate(top, "samples") < 100
    opened.page.get_by_role("link", name="Part 6").click()
    assert 0 <= opened.page.evaluate(top, "s6") < 100
    wait_until(opened.page, "document.querySelector('[aria-current]')?.textContent === 'Part 6'")
    box = opened.page.locator("[aria-current]").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 400
