"""ROUGE-L: ours against the ``rouge_score`` package on the same fresh texts, in one interleaved run.

    python benchmarks/rouge.py [--pairs 40]

No text is timed twice, so no memory of whole texts can answer. ``cold`` empties our stem memory before
every pair; ``warm`` fills it with 300 other pairs first, as happens early on in a task of thousands.
"""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable

from rouge_score.rouge_scorer import RougeScorer

from cg_tasks import rouge
from cg_tasks.rouge import rouge_l

HEADS = (
    "act bal cre dis form gener hop integr just lumin magnet nation oper percept question relat sens transl uni vigor"
)
MIDDLES = ["", "a", "ic", "or", "ur", "em", "il", "ent", "ist", "ag", "ov", "und"]
TAILS = "s ed ing ly ational ization fulness iveness ability ment er est ation"
SHORT = "the of and a to in is it that for on with as by at from this be or an are was not but"
DATASET_SIZE = 5166  # instances in ConceptGuard


def vocabulary() -> list[str]:
    """About 3,400 words, the short ones first: drawn with Zipf weights they are over a third of a text."""
    longer = [head + middle + tail for head in HEADS.split() for middle in MIDDLES for tail in ["", *TAILS.split()]]
    random.Random(1).shuffle(longer)
    return SHORT.split() + longer


def make_pairs(count: int, words: int, seed: int) -> list[tuple[str, str]]:
    """``count`` (reference, candidate) pairs; a candidate keeps two thirds of its reference's words, in order."""
    draw, known = random.Random(seed), vocabulary()
    weights = [1 / (rank + 2) for rank in range(len(known))]
    pairs = []
    for _ in range(count):
        reference = draw.choices(known, weights, k=words)
        noise = draw.choices(known, weights, k=words)
        candidate = [kept if draw.random() < 2 / 3 else new for kept, new in zip(reference, noise, strict=True)]
        pairs.append((" ".join(reference).capitalize() + ".", ", ".join(candidate)))
    return pairs


def forget() -> None:
    rouge._STEMS.clear()
    rouge._reference_stems.cache_clear()


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(pairs: list[tuple[str, str]], *, cold: bool) -> tuple[float, float, int]:
    """Median seconds a pair (ours, rouge_score), and the number of bits in which their scores differ."""
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    forget()
    if not cold:
        for reference, candidate in make_pairs(300, 200, seed=99):
            rouge_l(reference, candidate)
    ours, theirs, wrong_bits = [], [], 0
    for reference, candidate in pairs:
        if cold:
            forget()
        ours.append(seconds(lambda: rouge_l(reference, candidate)))  # noqa: B023  # called at once
        theirs.append(seconds(lambda: scorer.score(reference, candidate)))  # noqa: B023
        peer = scorer.score(reference, candidate)["rougeL"]
        for mine, other in zip(rouge_l(reference, candidate), peer, strict=True):
            wrong_bits += (bits(mine) ^ bits(other)).bit_count()
    return statistics.median(ours), statistics.median(theirs), wrong_bits


def bits(number: float) -> int:
    return int.from_bytes(struct.pack(">d", number), "big")


def first_call() -> float:
    code = "import time; from cg_tasks.rouge import rouge_l; t = time.perf_counter(); rouge_l('a national', 'rational')"
    code += "; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="pairs a row of the table (default: 40)")
    count = parser.parse_args().pairs
    print(f"first call in a fresh interpreter, which imports nltk (in no row below): {first_call():.2f} s")
    print(f"{'words':>5}  {'stems':5}  {'ours, ms':>9}  {'rouge_score, ms':>15}  {'ratio':>6}  bits apart")
    for words in (50, 200, 500):
        for cold in (True, False):
            ours, theirs, wrong_bits = compare(make_pairs(count, words, seed=words + cold), cold=cold)
            print(
                f"{words:5d}  {'cold' if cold else 'warm':5}  {ours * 1e3:9.4f}  {theirs * 1e3:15.3f}"
                f"  {theirs / ours:5.0f}x  {wrong_bits}"
            )
    forget()
    pairs = make_pairs(DATASET_SIZE, 200, seed=7)
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    ours = seconds(lambda: [rouge_l(*pair) for pair in pairs])
    theirs = seconds(lambda: [scorer.score(*pair) for pair in pairs[:count]]) / count * DATASET_SIZE
    print(
        f"{DATASET_SIZE} pairs of 200 words, memory empty at the start: ours {ours:.2f} s;"
        f" rouge_score {theirs:.1f} s (from {count} pairs); {theirs / ours:.0f}x"
    )


if __name__ == "__main__":
    main()
