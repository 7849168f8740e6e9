"""Pages that work offline and load nothing: their assets, and the policy that holds the browser to them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def asset(folder: Path, name: str) -> str:
    """A style or a script to put into the page."""
    # The hash in the policy is of what the browser reads, and it reads every line end as \n.
    return (folder / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def content_policy(style: str, script: str, more: str = "") -> str:
    """A Content-Security-Policy that allows this style and this script alone. more: further directives, each ending in ``; ``."""
    style_hash, script_hash = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in (style, script))
    return (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; {more}"
        "base-uri 'none'; form-action 'none'"
    )
