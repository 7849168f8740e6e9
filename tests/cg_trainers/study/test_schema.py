"""What a study file may say, and the one line that a mistake in it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from cg_tasks.errors import UserError
from cg_trainers.study.check import check_evaluations
from cg_trainers.study.cli import read_studies
from cg_trainers.study.documents import read_document
from cg_trainers.study.schema import load_study, shipped

GOOD = """\
name: s
models:
  m: {pretrained: somewhere}
finetune:
  ft: {recipe: cpu/canary/memorise-bio}
unlearn:
  npo:
    recipe: cpu/canary/npo
    from: ft
    K: [2, 4]
evaluate:
  - tasks: [canary_auto]
    limit: 8
"""


def study_file(folder: Path, text: str = GOOD) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        check_evaluations(read_studies(words))
    message = str(caught.value)
    assert "\n" not in message and "pydantic" not in message
    return message


def test_defaults_are_filled_in_and_one_is_a_list(tmp_path: Path) -> None:
    study = load_study(str(study_file(tmp_path, GOOD.replace("tasks: [canary_auto]", "tasks: canary_auto"))))
    assert study.folder == "studies/s"
    assert study.evaluate[0].tasks == ["canary_auto"] and study.evaluate[0].when == ["base", "finetuned", "unlearned"]
    assert study.unlearn["npo"].from_ == "ft" and study.unlearn["npo"].seeds == [0]
    assert study.forget_fractions == [1.0] and study.judge is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("unlearn:", "unlern:", "study.yaml, line 6: unknown key 'unlern': did you mean 'unlearn'?"),
        ("    from: ft", "    form: ft", "line 9: unknown key 'form' in unlearn.npo: did you mean 'from'?"),
        ("    from: ft", "", "line 7: unlearn.npo.from is missing: add it"),
        ("    K: [2, 4]", "    K: [4, 2]", "line 10: unlearn.npo.K: [4, 2]: list each step once, in order"),
        ("    K: [2, 4]", "    k: [2, 4]", "line 10: unknown key 'k' in unlearn.npo: did you mean 'K'?"),
        ("from: ft", "from: fft", "line 9: unlearn.npo.from: no 'fft' in this study: did you mean 'ft'?"),
        ("limit: 8", "limit: 0", "line 13: evaluate.0.limit is 0: it must be greater than or equal to 1"),
        ("limit: 8", "limit: many", "line 13: evaluate.0.limit is 'many': it must be a valid integer"),
        ("limit: 8", "limit: true", "line 13: evaluate.0.limit is true: it must be a valid integer"),
        ("tasks: [canary_auto]", "tasks: [canary_auot]", "line 12: evaluate.0.tasks: no task 'canary_auot': did you mean 'canary_a"),
        ("limit: 8", "metadata: {datset: x}", "line 13: evaluate.0.metadata: unknown setting 'datset'"),
        ("limit: 8", "when: [bases]", "line 13: evaluate.0.when.0 is 'bases': it must be 'base', 'finetuned' or 'unlearned'"),
        ("name: s", "name: ../s", "line 1: name: '../s': use letters, digits"),
        ("  m: {", "  a/b: {", "models: 'a/b' becomes part of file names"),
        ("name: s", "name: s\nname: t", "line 2: 'name' stands twice (line 1): remove one"),
        ("name: s", "name: s\nname2: &a [*a]", "not YAML"),
        ("    limit: 8", "  limit: 8", "line 13: not YAML"),
        ("pretrained: somewhere", "pretrained: 7", "line 3: models.m.pretrained is 7: it must be a valid string"),
        ("pretrained: somewhere", "token: hf_x", "line 3: 'token' is a secret"),
        ("pretrained: somewhere", "pretrained: x, model_args: {use_auth_token: hf_x}", "line 3: 'use_auth_token' is a secret"),
        ("limit: 8", "arguments: --model_args api_key=sk-1", "line 13: 'api_key' is a secret"),
        ("limit: 8", "arguments: [--hf_hub_token, x]", "line 13: 'hf_hub_token' is a secret"),
        ("limit: 8", "metadata: {api_key: [sk-1]}", "line 13: 'api_key' is a secret"),
        ("limit: 8", "arguments: ['--model_args', '{\"password\": \"x\"}']", "line 13: 'password' is a secret"),
        ("evaluate:", "rules: {evaluate: {launcher: env HF_TOKEN=x python -m}}\nevaluate:", "line 11: 'HF_TOKEN' is a secret"),
        ("evaluate:", "rules: {evalute: {threads: 1}}\nevaluate:", "unknown key 'evalute' in rules: did you mean 'evaluate'?"),
        ("evaluate:", "forget_fractions: [0]\nevaluate:", "line 11: forget_fractions.0 is 0: it must be greater than 0"),
        ("    limit: 8", "  - tasks: [canary_qa]", "line 12: evaluate.0: of several, each needs a 'name' of its own"),
        ("evaluate:", "judge: {settings: no.yaml}\nevaluate:", "line 11: judge.settings: no such file: no.yaml"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert GOOD.count(old) == 1 or old in ("from: ft",)
    message = refusal(str(study_file(tmp_path, GOOD.replace(old, new, 1))))
    assert said in message, message


@pytest.mark.parametrize(
    "change",
    [
        "models.m.model_args.token=hf_x",
        "evaluate.0.arguments=--api_key=hf_x",
        "evaluate.0.metadata={token: hf_x}",
        "evaluate.0.arguments=[--token=hf_x",
        "name.token.x=hf_x",
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_shown(change: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="command line: .*is a secret") as caught:
        load_study(str(study_file(tmp_path, GOOD)), [change])
    assert "hf_x" not in str(caught.value)


def test_a_file_whose_name_has_an_equals_sign_is_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "k=2.yaml"
    path.write_text(GOOD + "out: ~/x\n", encoding="utf-8")
    assert [study.folder for study in read_studies([str(path)])] == [str(tmp_path / "x")]


@pytest.mark.parametrize("text", ["", "- a\n", "7\n", "\x00", "{" * 500, "a: " + "[" * 500])
def test_what_is_no_study_at_all(text: str, tmp_path: Path) -> None:
    assert str(tmp_path / "study.yaml") in refusal(str(study_file(tmp_path, text)))


def test_aliases_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 12)]
    with pytest.raises(UserError, match="without nested aliases"):
        read_document(study_file(tmp_path, "\n".join(lines)))


def test_names_that_are_no_file_and_no_study() -> None:
    assert refusal("canary_cpuu") == "no file and no shipped study 'canary_cpuu': did you mean 'canary_cpu'?"
    assert refusal("nowhere/s.yaml").startswith("no such file: nowhere/s.yaml; shipped studies: canary_cpu, ")
    assert refusal("limit=3").startswith("command line: no study is named")


def test_changes_from_the_command_line(tmp_path: Path) -> None:
    path = str(study_file(tmp_path, GOOD.replace("  m:", "  m-2.5:")))
    changes = ["evaluate.0.limit=4", "unlearn.npo.seeds=[0, 1]", "models.m-2.5.pretrained=there", "study:judge={}"]
    (study,) = read_studies([path, *changes])
    assert study.evaluate[0].limit == 4
    assert study.unlearn["npo"].seeds == [0, 1]
    assert study.models["m-2.5"].pretrained == "there"
    assert study.judge is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("evaluate.0.limt=4", "command line: unknown key 'limt' in evaluate.0: did you mean 'limit'?"),
        ("evaluate.3.limit=4", "evaluate is a list of 1, numbered from 0: no '3'"),
        ("name.x=4", "command line: 'name.x=4': name is 's': there is nothing inside it"),
        ("evaluate.0.limit=[", "command line: evaluate.0.limit: '[' is not YAML"),
        ("evaluate.0.limit=x", "command line: evaluate.0.limit is 'x': it must be a valid integer"),
        ("other:judge={}", "no study 'other' is named (there is study)"),
        ("=4", "a change is written key.path=value"),
    ],
)
def test_a_change_that_is_none(change: str, said: str, tmp_path: Path) -> None:
    message = refusal(str(study_file(tmp_path)), change)
    assert said in message, message


@pytest.mark.parametrize("name", ["conceptguard_paper", "canary_paper", "conceptguard_cpu", "canary_cpu"])
def test_every_value_of_a_shipped_study_says_where_it_comes_from(name: str) -> None:
    from cg_trainers.study.schema import STUDIES

    assert name in shipped()
    check_evaluations([load_study(name)])
    for number, line in enumerate((STUDIES / f"{name}.yaml").read_text(encoding="utf-8").splitlines(), 1):
        content, _, comment = line.partition(" #")
        if content.strip() and not line.startswith("#") and not content.rstrip().endswith(":"):
            said = comment.strip().startswith(("paper", "openunlearning", "authors", "assumed"))
            assert said or "recipe:" in content, f"line {number}: {line}"
