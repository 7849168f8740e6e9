"""``conceptguard adapter verify | show``: whether a trained adapter is whole, and what made it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any


def add_adapter_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``adapter`` and its commands; each sets ``run``: parsed arguments -> exit code."""
    adapter = subparsers.add_parser("adapter", help="check and describe what the trainers wrote")
    commands = adapter.add_subparsers(dest="adapter_command", metavar="COMMAND", required=True)

    verify = commands.add_parser(
        "verify",
        help="compare adapters, models or checkpoints with their conceptguard.json; exit code 1 if one differs",
    )
    verify.add_argument("folders", nargs="+", metavar="DIR", help="a folder with a conceptguard.json")
    verify.add_argument("--json", action="store_true", help="print one JSON list")
    verify.set_defaults(run=run_verify)

    show = commands.add_parser(
        "show", help="print what made an adapter; exit code 1 if its files differ from its record"
    )
    show.add_argument("folder", metavar="DIR", help="a folder with a conceptguard.json")
    show.set_defaults(run=run_show)


def run_verify(args: argparse.Namespace) -> int:
    """Print one line a folder, or a JSON list; 1 when one is not what its record says."""
    import json
    import logging

    logging.basicConfig(level=logging.INFO, format="%(message)s")  # says that gigabytes are being read
    reports = [_report(folder) for folder in args.folders]
    if args.json:
        print(json.dumps(reports, indent=2, ensure_ascii=False))
    else:
        for report in reports:
            print(_line(report))
    return 0 if all(report["ok"] for report in reports) else 1


def _report(folder: str) -> dict[str, Any]:
    from cg_tasks.adapters import verify_adapter
    from cg_tasks.errors import UserError

    try:
        found = verify_adapter(folder)
    except UserError as error:
        return {"folder": folder, "ok": False, "error": str(error)}
    return {
        "folder": folder,
        "ok": True,
        "kind": found.record.get("kind"),
        "objective": found.objective,
        "step": found.step,
        "base": found.base,
        "files": len(found.checked),
    }


def _line(report: Mapping[str, Any]) -> str:
    if not report["ok"]:
        return f"FAIL  {report['error']}"
    return (
        f"ok    {report['folder']}: {report['kind']} {report['objective']}, K={report['step']}, "
        f"base {report['base']}, {report['files']} files as recorded"
    )


def run_show(args: argparse.Namespace) -> int:
    """Print the record for people; 1 when the files are not what it says."""
    from pathlib import Path

    from cg_tasks.adapters import read_record, verify_adapter
    from cg_tasks.errors import UserError

    record = read_record(Path(args.folder).expanduser())
    print(describe(args.folder, record))
    try:
        found = verify_adapter(args.folder)
    except UserError as error:
        print(f"{'files':<14} FAIL  {error}")
        return 1
    print(f"{'files':<14} {len(found.checked)} as recorded: {', '.join(found.checked)}")
    return 0


def describe(folder: str, record: Mapping[str, Any]) -> str:
    """A record as aligned lines; hashes are shortened to 12 digits, settings stand one a line."""
    made = f"{record.get('kind')} {record.get('objective')}, K={record['step']}, seed {record.get('seed')}"
    rows = [
        ("folder", folder),
        ("made by", f"{made}, {record.get('world_size')} process(es), {record.get('created')}"),
        ("command", record.get("command")),
        *(
            (key.replace("_", " "), record.get(key))
            for key in ("base", "tokenizer", "start_adapter", "reference", "data", "versions")
        ),
    ]
    lines = [f"{label:<14} {_flat(value)}" for label, value in rows]
    settings = record.get("settings") or {}
    width = max(map(len, settings), default=0)
    lines += ["settings", *(f"  {name:<{width}}  {_flat(value)}" for name, value in settings.items())]
    return "\n".join(lines)


def _flat(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_flat(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return f"[{', '.join(map(_flat, value))}]"
    text = str(value)
    is_digest = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return text[:12] if is_digest else text
