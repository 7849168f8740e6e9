"""What the commands of ``conceptguard build`` import and load late, loaded: processes forked from here need not, seconds each."""

from __future__ import annotations

import importlib

from cg_tasks import rouge
from cg_tasks.construction.text import language

MODULES = (
    "filelock",
    "httpcore2",
    "openai",
    "sklearn.metrics",
    "sklearn.feature_extraction.text",
    "truststore",
    "cg_tasks.cli_build",
    "cg_tasks.cli_build_stage",
    "cg_tasks.construction.dataset.finishing",
    "cg_tasks.construction.engine.batch",
    "cg_tasks.construction.engine.run",
    "cg_tasks.judge.fast_lane",
    "cg_tasks.judge.sheets",
)

for name in MODULES:
    importlib.import_module(name)
language.require_language("en")
rouge.rouge_l("warm", "words")
