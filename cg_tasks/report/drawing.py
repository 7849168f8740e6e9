"""How every figure looks: sizes, fonts, a colour-blind-safe palette, and saving the same bytes for the same data.

A drawing function is decorated with :func:`styled`, makes a :func:`canvas`, says n and units in a :func:`subtitle`, and
returns what :func:`rendered` gives.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from cg_tasks.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

P = ParamSpec("P")
T = TypeVar("T")

# Okabe and Ito's palette without its yellow, which a white page swallows; a marker beside each, so that colour is never alone.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
GREY = "#6b7280"
DIVERGING = "PuOr_r"  # orange to purple through white: told apart by every kind of colour vision
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "conceptguard",
    "svg.fonttype": "path",
    "text.parse_math": False,  # a concept may hold a dollar
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """The style holds for all of a drawing function: matplotlib reads sizes when a text is made, not when it is saved.

    Raises:
        UserError: matplotlib is not installed.
    """

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        rc_context = require_matplotlib().rc_context
        with rc_context(_STYLE):
            return draw(*args, **kwargs)

    return inside


def canvas(
    width: float = 6.4, height: float = 3.8, rows: int = 1, columns: int = 1, **more: Any
) -> tuple[Canvas, Sequence]:
    """A new figure of ``width`` x ``height`` inches and its axes, flattened into a list. Needs no screen.

    Raises:
        UserError: matplotlib is not installed.
    """
    rc_context = require_matplotlib().rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with rc_context(_STYLE):
        figure = Canvas(figsize=(width, height))
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, **more)
    return figure, list(axes.flat)


def rendered(figure: Canvas) -> tuple[bytes, bytes]:
    """(svg, png) of a figure; equal bytes for equal figures."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # type: ignore[attr-defined]
    svg, png = io.BytesIO(), io.BytesIO()
    with rc_context(_STYLE):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def colour(index: int) -> str:
    """The palette's colour for the index-th series, going round."""
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """The marker for the index-th series; changes with each round of colours."""
    return MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """A name broken into at most ``lines`` lines of about ``width`` letters, with … where it was cut; drawable whatever it holds."""
    clean = " ".join(text.encode("utf-8", "replace").decode().split())
    clean = "".join(letter for letter in clean if letter.isprintable())
    return "\n".join(_Wrapper(width, max_lines=lines, placeholder=" …").wrap(clean)) or "(no name)"


def subtitle(axes: Any, title: str, words: str, width: int = 90) -> None:
    """A title, and below it in grey what must be known to read the figure: n, units, intervals."""
    below = textwrap.fill(words, width)
    axes.set_title(
        wrapped(title, int(width * 0.8), 2), loc="left", pad=8 + 10.5 * (below.count("\n") + 1), weight="bold"
    )
    axes.annotate(
        below,
        (0, 1),
        (0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=7.5,
        color=GREY,
        va="bottom",
    )


def legend_below(
    figure: Canvas, handles: Sequence[Any], labels: Sequence[str], columns: int = 2, width: int = 44
) -> float:
    """A legend under everything, names wrapped. Returns the inches it takes, which the caller adds to the figure's height."""
    shown = [wrapped(label, width, 2) for label in labels]
    columns = max(1, min(columns, len(shown)))
    figure.legend(handles, shown, loc="outside lower left", ncols=columns)
    rows = -(-len(shown) // columns)
    tall = 1.6 if any("\n" in label for label in shown) else 1.0
    return 0.12 + 0.19 * rows * tall


class _Wrapper(textwrap.TextWrapper):
    """Breaks words that are too long after _ and /: names of models and settings hold no spaces."""

    def _split(self, text: str) -> list[str]:
        parts: list[str] = []
        for word in super()._split(text):  # type: ignore[misc]
            parts += re.findall(r"[^_/]*[_/]+|[^_/]+", word) if len(word) > self.width else [word]
        return parts


def require_matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'conceptguard[report]'") from None
    return matplotlib
