"""Text that any JSON encoder, file and server can take."""

from __future__ import annotations


def encodable(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates, which UTF-8 cannot hold, replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
