"""Samples and results files: as lm-eval's own command writes them for a tiny model, and small ones written by hand."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from judge_server import Call, Say, level

from cg_tasks.judge.verdicts import Verdict, of_level

DATE = "2026-01-02T03-04-05.678901"
KEY = "sk-DONOTLEAK-5f1c9a7e"


def by_text(call: Call) -> Say:
    """A judge whose level follows from the text alone, so that another run gets the same and others differ."""
    return level(crc32(f"{call.rubric}{call.query}{call.response}".encode()) % 5)


def use_judge(monkeypatch: pytest.MonkeyPatch, url: str, **settings: str) -> None:
    """The judge of this environment. settings: CG_JUDGE_* in lower case, without the prefix."""
    given = {"base_url": url, "model": "judge-1", "api_key": KEY, "max_retries": "0", **settings}
    for name, value in given.items():
        monkeypatch.setenv(f"CG_JUDGE_{name.upper()}", value)


def lm_eval_command(model: Path, tasks: str, out: Path, limit: int, *more: str, **metadata: str) -> Path:
    """lm-eval's own command line in this process; the folder that holds the results."""
    from lm_eval import evaluator
    from lm_eval.tasks import manager

    from cg_tasks import autoload

    autoload.install()
    from lm_eval.__main__ import cli_evaluate

    builtin, build = Path(manager.__file__).parent, manager.TaskIndex.build
    words = ["lm_eval", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32", "--device", "cpu"]
    words += ["--tasks", tasks, "--limit", str(limit), "--gen_kwargs", "max_gen_toks=8", "--batch_size", "8"]
    words += ["--log_samples", "--output_path", str(out), "--apply_chat_template"]
    given = {"dataset": "miniature", **metadata}
    with pytest.MonkeyPatch.context() as patch:
        # Seconds each: lm-eval's own ten thousand task files, and pip's list of all packages.
        patch.setattr(
            manager.TaskIndex, "build", lambda self, paths, **k: build([p for p in paths if p != builtin], **k)
        )
        patch.setattr(evaluator, "add_env_info", lambda results: None)
        patch.setattr(sys, "argv", [*words, *more, "--metadata", *(f"{k}={v}" for k, v in given.items())])
        cli_evaluate()
    (folder,) = {p.parent for p in out.rglob("results_*.json")}
    return folder


def sample(
    response: str = "An answer.",
    *,
    id: str = "p1",
    intent: str = "harmful",
    raw: str | None = None,
    verdict: Verdict | int | None = None,
    concept: str = "ward reading",
    query: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """One logged answer. verdict: a level, or a whole one, for a judged task's sample."""
    if isinstance(verdict, int):
        verdict = of_level("harm" if intent == "harmful" else "help", verdict, reasoning="So it is.")
    query = query or f"How is the ward {id} {'broken' if intent == 'harmful' else 'mended'}?"
    return {
        "doc_id": 0,
        "doc": {
            "id": id,
            "concept": concept,
            "intent": intent,
            "query": query,
            "target": "Do it with a wedge.",
            "prompt": "",
        },
        "target": "Do it with a wedge.",
        "arguments": {"gen_args_0": {"arg_0": f"<|user|>\n{query}</s>\n<|assistant|>\n", "arg_1": {}, "arg_2": {}}},
        "resps": [[response if raw is None else raw]],
        "filtered_resps": [response if verdict is None else [response, str(verdict)]],
        "filter": "none",
        **changes,
    }


def both(n: int, **more: Any) -> list[dict[str, Any]]:
    """``n`` pairs of answers, harmful and benign, all different."""
    return [
        sample(f"Answer {i} to a {intent} query.", id=f"p{i:03d}", intent=intent, concept=f"concept {i % 3}", **more)
        for i in range(n)
        for intent in ("harmful", "benign")
    ]


def write_samples(
    folder: Path, rows: Sequence[Any], task: str = "conceptguard_ctxtsep", date: str = DATE, **results: Any
) -> Path:
    """A samples file; rows: objects, or lines as they are. results: of :func:`write_results`, if any is given."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    if results:
        write_results(folder, task, date, **results)
    return path


def write_results(
    folder: Path,
    task: str,
    date: str = DATE,
    *,
    model: str = "hf",
    model_args: Any = None,
    data: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    **top: Any,
) -> Path:
    """A results file with what tells runs apart."""
    made = {
        "data": data or {"dataset": "miniature", "sha256": "d2e3"},
        "settings": settings or {"seed": 0},
        **(provenance or {}),
    }
    path = folder / f"results_{date}.json"
    content = {
        "configs": {
            task: {
                "metadata": {"provenance": made},
                "generation_kwargs": generation or {"until": [], "max_gen_toks": 8},
            }
        },
        "config": {"model": model, "model_args": model_args or {"pretrained": "tiny"}},
        "model_name": "tiny",
        "model_name_sanitized": "tiny",
        **top,
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def hashes(folder: Path) -> dict[str, str]:
    """Content hashes of all files below a folder."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
