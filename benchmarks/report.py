"""The report's page with many samples: how large it is and how fast, against a page that carries the same samples as plain JSON.

    python benchmarks/report.py [--runs 12] [--samples 5166] [--repeats 3] [--keep DIR]

Made-up answers of 150 to 200 words (a vocabulary with Zipf's frequencies, as natural text has), the same queries and targets under
every checkpoint. Both pages are opened in the system's headless Chromium, in a new profile each time and in turn. *plain* holds every
sample as a JSON object in a script element, parses all of them when it opens and shows the first one: what a page does that
does not pack its data. *open* ends with the load event; *first sample* when a text of it is on the page (ours: unpacked, list and
filters included); *filter*, *search*, *scroll*, *next sample*, *other checkpoint* end with the second frame after they were asked for.
*memory* is what the page's scripts hold (JavaScript heap) after the first sample.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import NoBrowser, chromium, wait_until  # noqa: E402

from cg_tasks.report.content import Report, Section  # noqa: E402
from cg_tasks.report.page.rendering import render  # noqa: E402
from cg_tasks.report.page.samples_data import pack  # noqa: E402
from cg_tasks.report.results.texts import SampleArm, SampleText, SampleVerdict  # noqa: E402
from cg_tasks.report.runs import Checkpoint, TaskRun  # noqa: E402

OPEN_TARGET_S = 3.0
CONCEPTS = 68
PLAIN = """<!doctype html><meta charset="utf-8"><title>plain</title><pre id="shown"></pre>
<script type="application/json" id="all">%s</script>
<script>
const all = JSON.parse(document.getElementById("all").textContent);
document.getElementById("shown").textContent = Object.values(all)[0][0].response;
</script>"""
# Two frames: what was asked for has been laid out and painted.
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Words:
    """Texts of made-up words whose frequencies fall as 1/rank."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = random.Random(0)
        self.words = ["".join(letters.choices("etaoinshrdlucmfwypvbgk", k=letters.randint(2, 10))) for _ in range(8000)]
        total = 0.0
        self.weights = [total := total + 1 / (rank + 2) for rank in range(len(self.words))]

    def text(self, least: int, most: int) -> str:
        return " ".join(self.random.choices(self.words, cum_weights=self.weights, k=self.random.randint(least, most)))


def samples(run: int, n: int) -> Iterator[SampleText]:
    """The n samples of a run; only answers and scores differ between runs."""
    asked, said = Words(1), Words(100 + run)
    for i in range(n):
        intent = ("harmful", "benign")[i % 2]
        name, query, answer = f"pair-{i // 2:05d}", asked.text(12, 30), said.text(150, 200)
        score = round(said.random.random(), 4)
        yield SampleText(
            id=name,
            unit=f"{name}/{intent}",
            concept=f"concept {i // 2 % CONCEPTS}",
            intent=intent,
            role="",
            author="",
            query=query,
            target=asked.text(150, 200),
            prompt=f"<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n",
            arms=(SampleArm("auto", answer, "", answer),),
            verdict=SampleVerdict("judged", 1 + int(score * 4), said.text(20, 40), score),
            scores={("harm_score" if i % 2 == 0 else "help_score"): score, "rougeL": round(said.random.random(), 4)},
        )


def made_run(index: int, n: int) -> TaskRun:
    who = Checkpoint("model", "id", "unlearned", str(index), method="npo", k=100 * (index + 1), seed=0)
    path = Path(f"run-{index}.json")
    nothing: dict[str, Any] = {}
    return TaskRun(
        *("conceptguard_ctxtsep", "conceptguard", who, nothing, nothing, n, n, nothing, nothing, nothing, nothing),
        path,
        "2026-01-01",
        path,
    )


def plain_page(runs: list[list[SampleText]]) -> str:
    """All samples as JSON in one script element."""
    rows = {
        f"run {i}": [
            {
                **{k: getattr(s, k) for k in ("id", "unit", "concept", "intent", "query", "target", "prompt")},
                "response": s.arms[0].answer,
                "verdict": vars(s.verdict),
                "scores": s.scores,
            }
            for s in run
        ]
        for i, run in enumerate(runs)
    }
    return PLAIN % json.dumps(rows, ensure_ascii=False).replace("<", "\\u003c")


def opened(browser: Any, path: Path, fragment: str, shown: str) -> tuple[Any, dict[str, float]]:
    """A page in a new profile, and seconds until it was loaded and until the first sample's text was there."""
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.set_default_timeout(120_000)
    start = time.perf_counter()
    page.goto(path.as_uri() + fragment, wait_until="load")
    loaded = time.perf_counter() - start
    wait_until(page, f"document.querySelector({shown!r})?.textContent.length > 50", seconds=120)
    page.evaluate(FRAMES)
    first = time.perf_counter() - start
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    metrics = {m["name"]: m["value"] for m in client.send("Performance.getMetrics")["metrics"]}
    return page, {"open, s": loaded, "first sample, s": first, "memory, MB": metrics["JSHeapUsedSize"] / 1e6}


def acted(page: Any, script: str) -> float:
    """Milliseconds from a script's start to the second frame after it."""
    return float(
        page.evaluate(
            f"(async () => {{ const t = performance.now(); {script}; await {FRAMES}; return performance.now() - t; }})()"
        )
    )


CHANGE = """
const e = document.querySelector('%s'), n = () => document.querySelector('.count span').textContent, was = n(), t0 = performance.now();
e.value = %s;
e.dispatchEvent(new Event('%s', {bubbles: true}));
while ((n() === was || !/ of /.test(n())) && performance.now() - t0 < 20000) await new Promise((d) => setTimeout(d, 1))"""

OTHER = """
const s = document.querySelector('#sample-checkpoint'), c = document.querySelector('.count span');
s.selectedIndex = s.options.length - 1;
s.dispatchEvent(new Event('change'));
const t0 = performance.now();
while (!/ of /.test(c.textContent) && performance.now() - t0 < 20000) await new Promise((d) => setTimeout(d, 1))"""


def used(page: Any) -> dict[str, float]:
    """What a reader does, in milliseconds each."""
    key = (
        "document.querySelector('#sample-list').dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))"
    )
    found = {
        "filter by concept, ms": acted(page, CHANGE % ("[data-filter=concept]", "'concept 7'", "input")),
        "next sample, ms": acted(page, key),
    }
    page.get_by_role("button", name="Clear filters").click()
    search = CHANGE % ("[data-filter=q]", "'pair-0001'", "input")
    found["search all texts, ms (150 of them waiting for more keys)"] = acted(page, search)
    page.get_by_role("button", name="Clear filters").click()
    found["scroll, ms"] = acted(page, "document.querySelector('#sample-list').scrollTop = 100000")
    found["other checkpoint, ms"] = acted(page, OTHER)
    found["rows in the page"] = page.locator(".item").count()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=5166)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for the two pages")
    args = parser.parse_args()

    every = [list(samples(i, args.samples)) for i in range(args.runs)]
    runs = [made_run(i, args.samples) for i in range(args.runs)]
    index = {run.path: i for i, run in enumerate(runs)}
    start = time.perf_counter()
    data = pack(runs, lambda run: every[index[run.path]])
    html = render(Report("Benchmark", (Section("one", "One section"),)), runs, data)
    built = time.perf_counter() - start

    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        ours, plain = folder.resolve() / "ours.html", folder.resolve() / "plain.html"
        ours.write_text(html, encoding="utf-8")
        plain.write_text(plain_page(every), encoding="utf-8")
        link = f"#sample/{data.index[0]['key']}/pair-00000%2Fbenign"
        found: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
        try:
            for _ in range(args.repeats):
                with chromium() as browser:
                    page, times = opened(browser, ours, link, ".detail .answer pre")
                    found["ours"].append({**times, **used(page)})
                with chromium() as browser:
                    found["plain"].append(opened(browser, plain, "", "#shown")[1])
        except NoBrowser as reason:
            sys.exit(f"benchmarks/report.py: {reason}")
        sizes = {name: path.stat().st_size / 1e6 for name, path in (("ours", ours), ("plain", plain))}

    middle = {who: {k: statistics.median(r[k] for r in rows) for k in rows[0]} for who, rows in found.items()}
    middle["ours"] = {"size, MB": sizes["ours"], **middle["ours"]}
    middle["plain"] = {"size, MB": sizes["plain"], **middle["plain"]}
    print(
        f"{args.runs} runs x {args.samples:,} samples; median of {args.repeats}; packed and rendered in {built:.1f} s\n"
    )
    print("| | ours | plain | ratio |\n| --- | ---: | ---: | ---: |")
    for name, value in middle["ours"].items():
        other = middle["plain"].get(name)
        beside = ("", "") if other is None else (f"{other:.2f}", f"{value / other:.2f}")
        print(f"| {name} | {value:.2f} | {beside[0]} | {beside[1]} |")
    verdict = "met" if middle["ours"]["open, s"] < OPEN_TARGET_S else "MISSED"
    print(f"\nopen < {OPEN_TARGET_S:g} s: {verdict}")


if __name__ == "__main__":
    main()
