"""Jinja templates: one file is one arm. Found, checked against the variables they may use, and rendered in a sandbox."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import yaml
from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2 import Template as CompiledTemplate
from jinja2.sandbox import SandboxedEnvironment

from cg_tasks.errors import UserError
from cg_tasks.paths import templates_dir

Kind = Literal["prefill", "qa_prefill", "probe", "trace", "judge", "construction"]

_OF_CONSTRUCTION: dict[str, tuple[str, ...]] = {
    "tag": ("prompt", "response", "language"),
    "benign": ("concept", "prompt", "response", "language", "min_words", "max_words", "unit"),
    "query": ("concept", "intent", "response", "language"),
    "propose": ("concepts", "language"),
}
_OF_EVERY_CONSTRUCTION = ("attempt", "failure", "nonce", "structured")
VARIABLES: dict[str, tuple[str, ...]] = {
    "prefill": ("author", "head", "question"),
    "qa_prefill": ("author", "question"),
    "probe": ("author", "head", "question"),
    "trace": ("author", "bio", "question", "canary"),
    "judge": ("query", "response", "nonce", "structured", "retry"),
    "construction": (*dict.fromkeys(chain(*_OF_CONSTRUCTION.values())), *_OF_EVERY_CONSTRUCTION),
}
CANARY_MARK = "[canary]"
_ARM_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_RESERVED_ARMS = frozenset({"auto", "forget", "retain", "trace_fallback"})
# `out_acc_<arm>` of such an arm would be the standard error, a bound or a baseline of another metric.
_RESERVED_ENDINGS = ("stderr", "ci_lo", "ci_hi", "shuffled_head", "wrong_author")
# Kinds whose files have fixed names: another name would never be read.
_FIXED_NAMES = {"probe": ("canary", "question"), "judge": ("harm", "help"), "construction": tuple(_OF_CONSTRUCTION)}
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FRONT_MATTER_KEYS: dict[str, dict[str, tuple[type, ...]]] = {
    "prefill": {"uses_canary": (bool,)},
    "qa_prefill": {"uses_canary": (bool,)},
    "probe": {"uses_canary": (bool,)},
    "trace": {"uses_canary": (bool,)},
    "judge": {"version": (int, str)},
    "construction": {"version": (int, str)},
}

_environment = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


@dataclass(frozen=True)
class Template:
    """One template file.

    name: the file's stem. path: where it lies. body: the Jinja source after the front matter. first_line: the line of the
    file on which the body starts. sha256: of the whole file. uses_canary: the front matter's ``uses_canary: true``.
    version: the front matter's ``version``, of a judge's rubric or a construction prompt.
    """

    kind: str
    name: str
    path: str
    body: str
    first_line: int
    sha256: str
    uses_canary: bool = False
    version: str | None = None

    @property
    def arm(self) -> str:
        """The arm's name in metric keys; an arm that was shown the canary carries a mark wherever it appears."""
        return self.name + (CANARY_MARK if self.uses_canary else "")

    @property
    def variables(self) -> tuple[str, ...]:
        """The names this template may use."""
        if self.kind == "construction" and self.name in _OF_CONSTRUCTION:
            return (*_OF_CONSTRUCTION[self.name], *_OF_EVERY_CONSTRUCTION)
        return VARIABLES[self.kind] + (("canary",) if self.uses_canary and "canary" not in VARIABLES[self.kind] else ())


def load_arms(kind: Literal["prefill", "qa_prefill"], user_dir: str | None = None) -> tuple[Template, ...]:
    """Every arm of one kind by name: the shipped files, and those of ``user_dir``/<kind>, which win over the same name.

    Raises:
        UserError: an arm name that cannot be a metric key, or whatever :func:`read_template` refuses.
    """
    arms = {template.name: template for folder in _folders(kind, user_dir) for template in _read_folder(kind, folder)}
    for template in arms.values():
        if not _ARM_NAME.match(template.name) or template.name in _RESERVED_ARMS:
            raise UserError(
                f"{template.path}: '{template.name}' cannot name an arm: rename the file to lower-case letters, digits and _, "
                f"starting with a letter, and none of {', '.join(sorted(_RESERVED_ARMS))}"
            )
        if template.name.endswith(_RESERVED_ENDINGS):
            raise UserError(
                f"{template.path}: '{template.name}' cannot name an arm: its metrics would be taken for another's "
                f"(no name may end in {', '.join(_RESERVED_ENDINGS)}): rename the file"
            )
    return tuple(arms[name] for name in sorted(arms))


def load_template(kind: Kind, name: str, user_dir: str | None = None) -> Template:
    """One template by name; the user's file wins over the shipped one.

    Raises:
        UserError: there is none, or :func:`read_template` refuses it.
    """
    for folder in reversed(_folders(kind, user_dir)):
        if (path := folder / f"{name}.j2").is_file():
            return read_template(kind, path)
    raise UserError(f"no template {kind}/{name}.j2 in {' or '.join(str(f) for f in _folders(kind, user_dir))}")


def read_template(kind: str, path: Path) -> Template:
    """Read and check one file: its encoding, front matter, syntax, and every variable it names.

    Raises:
        UserError: naming the file, the line, and the variable or the front-matter key.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save the template as UTF-8") from None
    body, first_line, front = _split_front_matter(text, path, _FRONT_MATTER_KEYS[kind])
    uses_canary, version = bool(front.get("uses_canary", False)), front.get("version")
    if kind == "probe" and uses_canary:
        raise UserError(
            f"{path}: a probe is every arm's, so none of them could be told from one that was shown the canary: "
            "show it in an arm of its own (prefill/NAME.j2)"
        )
    template = Template(
        kind,
        path.stem,
        str(path),
        body,
        first_line,
        hashlib.sha256(raw).hexdigest(),
        uses_canary,
        None if version is None else str(version),
    )
    _check_variables(template)
    return template


def render(template: Template, variables: Mapping[str, Any], block: str | None = None) -> str:
    """Render in the sandbox, the whole or one of its blocks.

    Raises:
        UserError: naming the file, and the line where Jinja tells it.
    """
    allowed = {name: variables[name] for name in template.variables if name in variables}
    try:
        compiled = _compiled(template.body)
        if block is None:
            return compiled.render(allowed)
        try:
            # As new_context would put them together, without walking through a chain of maps for every text.
            context = compiled.new_context({**_environment.globals, **allowed}, shared=True)
            return "".join(compiled.blocks[block](context))
        except Exception:
            compiled.environment.handle_exception()  # raises it again with the template's lines, as render does
    except Exception as error:  # a template is a user's program: whatever it raises is about that file
        raise UserError(f"{template.path}{_line_of(error, template)}: {type(error).__name__}: {error}") from None


@lru_cache(maxsize=64)
def _compiled(body: str) -> CompiledTemplate:
    return _environment.from_string(body)


def names_of(template: Template) -> frozenset[str]:
    """The variables a template names."""
    return frozenset(meta.find_undeclared_variables(_environment.parse(template.body)))


def blocks_of(template: Template) -> tuple[str, ...]:
    """The names of a template's blocks."""
    return tuple(_compiled(template.body).blocks)


def text_outside_blocks(template: Template) -> str:
    """The first words that stand in no block; empty where there are none."""
    for node in _environment.parse(template.body).body:
        if isinstance(node, nodes.Output):
            for part in node.nodes:
                text = part.data if isinstance(part, nodes.TemplateData) else "{{ … }}"
                if text.strip():
                    return " ".join(text.split())[:60]
    return ""


def require_versioned_messages(template: Template, what: str) -> None:
    """That a template says its version and holds the blocks ``system`` and ``user`` alone.

    Raises:
        UserError: it does not.
    """
    if not template.version:
        raise UserError(f"{template.path}: {what} must say its version in the front matter: version: 1")
    if missing := {"system", "user"} - set(blocks_of(template)):
        raise UserError(
            f"{template.path}: the block '{min(missing)}' is missing: write {{% block {min(missing)} %}}…{{% endblock %}}"
        )
    if said := text_outside_blocks(template):
        raise UserError(
            f"{template.path}: '{said}' stands outside the blocks and is never sent: put it into one of them"
        )


def template_hashes(templates: Iterable[Template]) -> dict[str, str]:
    """``kind/name -> sha256`` for provenance."""
    return {f"{t.kind}/{t.name}": t.sha256 for t in templates}


def _folders(kind: str, user_dir: str | None) -> list[Path]:
    folders = [templates_dir() / kind]
    if user_dir:
        root = Path(user_dir)
        _refuse_what_is_never_read(root)
        folders.append(root / kind)
    return folders


def _refuse_what_is_never_read(root: Path) -> None:
    """A template in the wrong place, or under the wrong name, would silently leave the shipped ones in force."""
    nested, (*others, last) = sorted(root.glob("*/*.j2")), VARIABLES
    if stray := sorted(root.glob("*.j2")) + [path for path in nested if path.parent.name not in VARIABLES]:
        raise UserError(
            f"{stray[0]}: put it into a subfolder that says what it is: {', '.join(others)} or {last} in {root}"
        )
    for path in nested:
        kind = path.parent.name
        if kind in _FIXED_NAMES and path.stem not in _FIXED_NAMES[kind]:
            names = " or ".join(f"{name}.j2" for name in _FIXED_NAMES[kind])
            reader = "stage" if kind == "construction" else "task"
            raise UserError(f"{path}: no {reader} reads such a {kind} template: name it {names}")
    strange = [
        p for kind in VARIABLES for p in sorted((root / kind).glob("*")) if p.suffix in (".jinja", ".jinja2", ".txt")
    ]
    if strange:
        raise UserError(f"{strange[0]}: only *.j2 files are read: rename it to {strange[0].stem}.j2, or take it away")
    if not nested:
        raise UserError(
            f"{root}: holds no template: put NAME.j2 files into {', '.join(f'{kind}/' for kind in others)} or {last}/"
        )


def _read_folder(kind: str, folder: Path) -> list[Template]:
    return [read_template(kind, path) for path in sorted(folder.glob("*.j2"))] if folder.is_dir() else []


def _split_front_matter(
    text: str, path: Path, known: Mapping[str, tuple[type, ...]]
) -> tuple[str, int, dict[str, Any]]:
    match = _FRONT_MATTER.match(text)
    if not match:
        return text, 1, {}
    names = ", ".join(f"{key}: {' or '.join(t.__name__ for t in types)}" for key, types in known.items())
    try:
        front = yaml.safe_load(match.group(1)) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 2 if mark else 2
        raise UserError(
            f"{path}, line {line}: the front matter is not YAML ({getattr(error, 'problem', error)})"
        ) from None
    if not isinstance(front, dict):
        raise UserError(f"{path}, line 2: the front matter must be 'key: value' lines (known: {names})")
    for key, value in front.items():
        if key not in known or not isinstance(value, known[key]):
            raise UserError(f"{path}: front matter '{key}: {value}' is not understood; known: {names}")
    return text[match.end() :], text[: match.end()].count("\n") + 1, front


def _check_variables(template: Template) -> None:
    try:
        tree = _environment.parse(template.body)
        unknown = meta.find_undeclared_variables(tree) - set(template.variables)
    except TemplateSyntaxError as error:  # also a block that stands twice
        line = error.lineno + template.first_line - 1
        raise UserError(f"{template.path}, line {line}: {error.message}") from None
    if not unknown:
        return
    first = min((n for n in tree.find_all(nodes.Name) if n.name in unknown), key=lambda n: n.lineno)
    kind = template.kind if template.kind != "construction" else f"construction/{template.name}"
    hint = ""
    if first.name == "canary":
        hint = "; an arm that shows the model the canary must say so in its front matter: uses_canary: true"
    raise UserError(
        f"{template.path}, line {first.lineno + template.first_line - 1}: unknown variable '{first.name}' "
        f"(a {kind} template may use {', '.join(template.variables)}){hint}"
    )


def _line_of(error: Exception, template: Template) -> str:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, TemplateError) and getattr(error, "lineno", None):
        line = error.lineno  # type: ignore[attr-defined]
    return f", line {line + template.first_line - 1}" if line else ""
