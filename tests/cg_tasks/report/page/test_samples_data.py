from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report_pages import canary_sample, checkpoint, demo_runs, pair_sample, task_run
from report_results import conceptguard_run, record

from cg_tasks.errors import UserError
from cg_tasks.report.page.samples_data import SamplesData, chunk, pack
from cg_tasks.report.results.texts import SampleArm, SampleText
from cg_tasks.report.runs import TaskRun


def packed(*runs: tuple[TaskRun, list[SampleText]]) -> SamplesData:
    by_path = {(run.path, run.task): samples for run, samples in runs}
    return pack([run for run, _ in runs], lambda run: by_path[run.path, run.task])


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def part(data: SamplesData, name: str, run: int = 0) -> Any:
    return unpacked(data.chunks[data.index[run][name]])


def test_a_chunk_survives_whatever_a_model_writes_and_shows_none_of_it() -> None:
    text = "</script><script>alert(1)</script>\x00\u2028 {{ x }} \ud83d\ude00 \ud800"
    made = chunk([text])
    assert set(made) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
    assert unpacked(made) == ["</script><script>alert(1)</script>\x00\u2028 {{ x }} 😀 \ufffd"]
    assert chunk([text]) == made


def test_columns_hold_the_documents_in_order_and_leave_out_what_none_has() -> None:
    docs = part(packed(demo_runs()[1]), "docs")
    assert docs["id"][:3] == ["mini-000", "mini-000", "mini-001"]
    assert docs["unit"][:2] == ["mini-000/harmful", "mini-000/benign"]
    assert docs["query"][3] == "benign query 1"
    assert "author" not in docs and "role" not in docs
    assert "unit" not in part(packed(demo_runs()[2]), "docs")


def test_a_prompt_is_what_stands_around_its_query() -> None:
    other = pair_sample(1, prompt="a prompt without it")
    prompts = part(packed((task_run(), [pair_sample(0), other])), "prompts")
    assert prompts == {"prompt": [["<user>", "</user>"], "a prompt without it"]}


def test_what_checkpoints_share_is_stored_once() -> None:
    data = packed(*demo_runs()[:2])
    assert data.index[0]["docs"] == data.index[1]["docs"]
    assert data.index[0]["prompts"] == data.index[1]["prompts"]
    assert data.index[0]["said"] != data.index[1]["said"]
    assert len(data.chunks) == 4


def test_arms_scores_and_verdicts() -> None:
    said = part(packed(demo_runs()[2]), "said")
    assert [arm["name"] for arm in said["arms"]] == ["auto", "bio"]
    assert said["arms"][0]["hit"] == [1, 0, 0, 1, 0, 0]
    assert said["arms"][1]["hit"] == [1, 1, 0, 0, 0, 0]
    assert said["scores"]["thk_leak"] == [1, 0, 1, 0, 1, 0]
    judged = part(packed(demo_runs()[1]), "said")
    assert judged["verdict"]["level"] == [3] * 8 and judged["verdict"]["status"][0] == "judged"
    assert judged["scores"]["harm_score"][:2] == [0, None]


def test_the_raw_generation_is_put_together_from_its_parts_or_stored_whole() -> None:
    arms = {
        "plain": SampleArm("auto", "just this", "", "just this"),
        "traced": SampleArm("auto", "<t>\nmine\n</t>\nyours ", "mine", "yours"),
        "unlike": SampleArm("auto", "raw text", "", "what was scored of it"),
    }
    raws = part(packed((task_run(), [pair_sample(0, arms=(arm,)) for arm in arms.values()])), "said")["arms"][0]["raw"]
    assert raws == [None, ["<t>\n", "\n</t>\n", " "], "raw text"]


def test_an_arm_that_a_document_has_not_is_null() -> None:
    less = canary_sample(1, True, True, True)
    less = SampleText(**{**less.__dict__, "arms": less.arms[:1]})
    said = part(packed((task_run("canary_prefill"), [canary_sample(0, True, True, True), less])), "said")
    assert said["arms"][1]["hit"] == [1, None] and said["arms"][1]["answer"][1] is None


def test_index_names_checkpoint_and_task_and_keys_do_not_depend_on_other_results() -> None:
    alone, among = packed(demo_runs()[1]), packed(*demo_runs())
    assert alone.index[0]["key"] == among.index[1]["key"]
    assert len({entry["key"] for entry in among.index}) == 3
    entry = among.index[1]
    assert (entry["task"], entry["base"], entry["checkpoint"], entry["seed"], entry["n"]) == (
        *("conceptguard_ctxtsep", "tiny", "NPO, K=4", 0, 8),
    )
    assert entry["metrics"] == {"rougeL": 0.25}


def test_two_runs_that_nothing_tells_apart_keep_apart() -> None:
    twin = task_run(path=Path("again.json"))
    keys = [e["key"] for e in packed((task_run(), [pair_sample(0)]), (twin, [pair_sample(0)])).index]
    assert len(set(keys)) == 2


def test_runs_without_samples_say_why_and_other_tasks_are_left_out() -> None:
    def read(run: TaskRun) -> Iterator[SampleText]:
        if run.checkpoint.seed == 1:
            raise UserError("line 3 is cut off")
        yield from ()

    runs = [
        task_run(samples=None),
        task_run(of=checkpoint(seed=1)),
        task_run(of=checkpoint(seed=2)),
        task_run("hellaswag", family="other"),
    ]
    whys = [entry["why"] for entry in pack(runs, read).index]
    assert "--log_samples" in whys[0] and "line 3 is cut off" in whys[1] and "no sample" in whys[2]
    assert len(whys) == 3


def test_reads_the_samples_of_real_result_folders(tmp_path: Path) -> None:
    from cg_tasks.report.results.reading import read_results

    conceptguard_run(tmp_path / "npo", checkpoint=record("npo", k=4), harm=[4, 3], help=[3, 4])
    runs = read_results([tmp_path]).runs
    data = pack(runs)
    assert len(data.index) == len(runs) > 0
    assert all(entry["n"] == run.n and not entry["why"] for entry, run in zip(data.index, runs, strict=True))
