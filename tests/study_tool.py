"""Stands in for trainers, lm_eval and the report in tests of studies: ``study_tool.py MODULE arguments…``, as a launcher calls it.

It writes what they write, in milliseconds, from the settings and from what it reads, so that equal work gives equal files.
``STUDY_TOOL`` in the environment, a JSON object, says where it goes wrong:
{"log": FILE, "fail": [name], "hang": {name: step}, "alone": FILE}.
alone: it fails beside another that runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

TOOL = json.loads(os.environ.get("STUDY_TOOL", "{}"))


def main(words: list[str]) -> int:
    module, *rest = words
    flags = _flags(rest)
    target = (flags.get("output_dir") or flags.get("output_path") or flags.get("out") or ["?"])[0]
    name = Path(target.removesuffix(".partial").removesuffix("/pairs.jsonl")).name
    with Path(TOOL["log"]).open("a", encoding="utf-8") as log:
        resumed = "+" if "resume_from_checkpoint" in flags else ""
        log.write(f"{module.rpartition('.')[2]}{resumed} {name}\n")
    print(f"working on {name}", flush=True)
    if "alone" in TOOL:
        os.close(os.open(TOOL["alone"], os.O_CREAT | os.O_EXCL))
        time.sleep(0.2)  # long enough for a second one to be started
        os.unlink(TOOL["alone"])
    if name in TOOL.get("fail", []):
        print("the last words of a failure", flush=True)
        return 7
    if module.startswith("cg_trainers."):
        _train(name, flags, Path(target), f"{module}")
    elif module == "lm_eval":
        _evaluate(name, flags, Path(target))
    else:
        _report(name, rest, flags, Path(target))
    return 0


def _train(name: str, flags: dict[str, list[str]], folder: Path, module: str) -> None:
    recipe = Path(flags["config"][0]).read_text(encoding="utf-8")
    start = Path(flags.get("adapter_name_or_path", [""])[0]) / "adapter_model.safetensors"
    made_of = [recipe, flags["seed"][0], start.read_bytes().hex() if start.is_file() else ""]
    if (dataset := flags.get("dataset", [""])[0]) and Path(dataset).is_file():
        made_of.append(Path(dataset).read_text(encoding="utf-8"))
    steps = [int(k) for k in flags.get("save_at", [])]
    if (folder / "conceptguard.json").exists():
        raise SystemExit("output_dir holds a run already")
    if any(folder.glob("checkpoint-*")) and "resume_from_checkpoint" not in flags:
        raise SystemExit("output_dir holds checkpoints already")
    for step in steps:
        if (folder / f"checkpoint-{step}").is_dir():
            continue
        _hang(name, step)
        _adapter(folder / f"checkpoint-{step}", [*made_of, str(step)], step, optimiser=True)
    _hang(name, 0)
    _adapter(folder, made_of, steps[-1] if steps else 9, optimiser=False)


def _adapter(folder: Path, made_of: list[str], step: int, optimiser: bool) -> None:
    """A whole adapter of one number, with its record."""
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    content = hashlib.sha256(json.dumps(made_of).encode()).digest()
    files = {
        "adapter_model.safetensors": struct.pack("<Q", len(header)) + header + content,
        "adapter_config.json": b"{}",
    }
    if optimiser:
        files |= {"optimizer.pt": b"state", "trainer_state.json": b"{}"}
    for file, data in files.items():
        (folder / file).write_bytes(data)
    record: dict[str, Any] = {"format": 1, "kind": "test", "objective": "none", "step": step, "base": {"name": "tiny"}}
    record["files"] = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    (folder / "conceptguard.json").write_text(json.dumps(record), encoding="utf-8")


def _evaluate(name: str, flags: dict[str, list[str]], folder: Path) -> None:
    (folder / "model").mkdir(parents=True)
    arguments = dict(pair.split("=", 1) for pair in flags["model_args"][0].split(","))
    weights = Path(arguments.get("peft", "none")) / "adapter_model.safetensors"
    number = hashlib.sha256(weights.read_bytes() if weights.is_file() else b"").hexdigest()[:8]
    (folder / "model" / "samples_task_2026.jsonl").write_text("{}\n", encoding="utf-8")
    _hang(name, 0)
    results = {"results": {flags["tasks"][0]: number}, "limit": flags.get("limit")}
    (folder / "model" / "results_2026.json").write_text(json.dumps(results), encoding="utf-8")


def _report(name: str, words: list[str], flags: dict[str, list[str]], folder: Path) -> None:
    results = words[1 : words.index("--out")]
    _hang(name, 0)
    folder.mkdir(exist_ok=True)
    found = {path: next(Path(path).rglob("results_*.json")).read_text(encoding="utf-8") for path in results}
    state = json.loads(Path(flags["study"][0]).read_text(encoding="utf-8"))
    page = {"results": found, "jobs": {job["id"]: job["status"] for job in state["jobs"]}}
    (folder / "index.html").write_text(json.dumps(page, indent=1), encoding="utf-8")


def _hang(name: str, step: int) -> None:
    """Stop here until killed, having said so in a file."""
    if TOOL.get("hang", {}).get(name) == step:
        Path(TOOL["log"]).with_name("hanging").write_text(str(os.getpid()), encoding="utf-8")
        time.sleep(60)


def _flags(words: list[str]) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            flags[name] = []
        elif name:
            flags[name].append(word)
    return flags


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
