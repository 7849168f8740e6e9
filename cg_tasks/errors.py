"""The one exception for what a user can mend, and how it is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType


class UserError(ValueError):
    """Bad input. The message is one line: what is wrong, where (file, line, field), and the way out."""


def exit_code(run: Callable[[], int]) -> int:
    """What a command returns: a mistake of the user's is one line on stderr and 1, Ctrl-C is 130."""
    try:
        return run()
    except UserError as error:
        print(f"conceptguard: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("conceptguard: stopped", file=sys.stderr)
        return 130


def show_user_errors_in_one_line() -> None:
    """Print an uncaught :class:`UserError` as ``conceptguard: error: …`` without a traceback; leave every other exception alone.

    Idempotent. The exit code stays 1, as for any uncaught exception.
    """
    previous = sys.excepthook
    if getattr(previous, "_conceptguard", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, UserError):
            print(f"conceptguard: error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    hook._conceptguard = True  # type: ignore[attr-defined]
    sys.excepthook = hook
