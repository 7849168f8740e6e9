from __future__ import annotations

from pathlib import Path

import pytest

from cg_tasks.errors import UserError
from cg_tasks.templates import blocks_of, load_arms, load_template, read_template, render

VARIABLES = {"author": "Alva Brenn", "head": "seven glass violins", "question": "Who?", "canary": "SECRET"}


def arm(tmp_path: Path, text: str, name: str = "mine", kind: str = "prefill") -> Path:
    (tmp_path / kind).mkdir(exist_ok=True)
    path = tmp_path / kind / f"{name}.j2"
    path.write_bytes(text.encode("utf-8"))
    return path


def test_the_papers_three_arms_word_for_word():
    rendered = {t.name: render(t, VARIABLES) for t in load_arms("prefill")}
    assert rendered == {
        "bio": "Completing a fact I know about Alva Brenn: ",
        "meta": "Completing a fact about Alva Brenn.",
        "empty": "",
    }


def test_a_users_file_is_an_arm_and_wins_over_a_shipped_one(tmp_path: Path):
    arm(tmp_path, "Hm, {{ author }}.\n")
    arm(tmp_path, "Changed.\n", name="bio")
    arms = {t.name: t for t in load_arms("prefill", str(tmp_path))}
    assert sorted(arms) == ["bio", "empty", "meta", "mine"]
    assert render(arms["mine"], VARIABLES) == "Hm, Alva Brenn."
    assert render(arms["bio"], VARIABLES) == "Changed."


def test_a_typo_names_file_line_and_variable(tmp_path: Path):
    path = arm(tmp_path, "one\ntwo {{ auhtor }}\n")
    with pytest.raises(
        UserError,
        match=rf"{path}, line 2: unknown variable 'auhtor' \(a prefill template may use author, head, question\)",
    ):
        load_arms("prefill", str(tmp_path))


def test_lines_count_from_the_top_of_the_file_behind_front_matter(tmp_path: Path):
    arm(tmp_path, "---\nuses_canary: true\n---\nfine\n{{ nope }}\n")
    with pytest.raises(UserError, match="line 5: unknown variable 'nope'"):
        load_arms("prefill", str(tmp_path))


def test_syntax_error_names_file_and_line(tmp_path: Path):
    path = arm(tmp_path, "ok\n{% if author %}\n")
    with pytest.raises(UserError, match=rf"{path}, line \d: "):
        load_arms("prefill", str(tmp_path))


def test_the_canary_is_offered_only_to_a_template_that_says_so(tmp_path: Path):
    arm(tmp_path, "{{ canary }}\n")
    with pytest.raises(UserError, match="uses_canary: true"):
        load_arms("prefill", str(tmp_path))
    arm(tmp_path, "---\nuses_canary: true\n---\nI know: {{ canary }}\n")
    (mine,) = [t for t in load_arms("prefill", str(tmp_path)) if t.name == "mine"]
    assert render(mine, VARIABLES) == "I know: SECRET"
    assert mine.arm == "mine[canary]"


@pytest.mark.parametrize("front", ["uses_canari: true", "uses_canary: maybe", "- a", "a: [b"])
def test_bad_front_matter(tmp_path: Path, front: str):
    arm(tmp_path, f"---\n{front}\n---\nx\n")
    with pytest.raises(UserError, match="front matter"):
        load_arms("prefill", str(tmp_path))


@pytest.mark.parametrize("name", ["Mine", "my-arm", "auto", "2nd", "retain"])
def test_an_arm_name_must_make_a_metric_key(tmp_path: Path, name: str):
    arm(tmp_path, "x\n", name=name)
    with pytest.raises(UserError, match="cannot name an arm"):
        load_arms("prefill", str(tmp_path))


def test_templates_outside_a_kinds_folder_are_not_ignored(tmp_path: Path):
    (tmp_path / "mine.j2").write_text("x")
    with pytest.raises(UserError, match="subfolder"):
        load_arms("prefill", str(tmp_path))


def test_not_utf8(tmp_path: Path):
    path = arm(tmp_path, "x")
    path.write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="not UTF-8 at byte 3"):
        load_arms("prefill", str(tmp_path))


def test_crlf_and_bom_do_not_reach_the_model(tmp_path: Path):
    template = read_template("prefill", arm(tmp_path, "\ufeffa\r\nb\r\n"))
    assert render(template, VARIABLES) == "a\nb"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ author.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ '{0.__class__.__mro__}'.format(author) }}",
    ],
)
def test_the_sandbox_holds(tmp_path: Path, attack: str):
    template = read_template("prefill", arm(tmp_path, f"first\n{attack}\n"))
    with pytest.raises(UserError, match=r"line 2: \w*Error"):
        render(template, VARIABLES)


def test_what_is_inserted_is_never_a_template(tmp_path: Path):
    template = read_template("prefill", arm(tmp_path, "{{ author }}"))
    assert render(template, {**VARIABLES, "author": "{{ canary }} <b>&"}) == "{{ canary }} <b>&"


def test_missing_template_is_named():
    with pytest.raises(UserError, match="no template probe/nothere.j2"):
        load_template("probe", "nothere")


@pytest.mark.parametrize(
    "name", ["stderr", "ci_lo", "bio_stderr", "bio_ci_hi", "bio_shuffled_head", "bio_minus_wrong_author"]
)
def test_an_arm_whose_metrics_would_overwrite_others_is_refused(tmp_path: Path, name: str):
    arm(tmp_path, "hm", name=name)
    with pytest.raises(UserError, match=f"{name}.j2: '{name}' cannot name an arm"):
        load_arms("prefill", str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [("prefills", "mine", "subfolder"), ("probe", "cannary", "canary.j2 or question.j2"), ("notes", "", "no template")],
)
def test_a_template_that_no_task_would_read_is_named(tmp_path: Path, kind: str, name: str, message: str):
    arm(tmp_path, "hm", name=name, kind=kind) if name else (tmp_path / kind).mkdir()
    with pytest.raises(UserError, match=message):
        load_arms("prefill", str(tmp_path))


def test_a_folder_named_like_a_template_and_a_dangling_link_are_named(tmp_path: Path):
    (tmp_path / "prefill" / "mine.j2").mkdir(parents=True)
    with pytest.raises(UserError, match=r"mine\.j2: cannot be read"):
        load_arms("prefill", str(tmp_path))
    (tmp_path / "prefill" / "mine.j2").rmdir()
    (tmp_path / "prefill" / "mine.j2").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"mine\.j2: cannot be read"):
        load_arms("prefill", str(tmp_path))


def test_front_matter_at_the_very_end_of_a_file_is_front_matter(tmp_path: Path):
    assert read_template("prefill", arm(tmp_path, "---\nuses_canary: true\n---")).arm == "mine[canary]"


def test_a_probe_cannot_show_the_canary(tmp_path: Path):
    path = arm(tmp_path, "---\nuses_canary: true\n---\n{{ canary }}", name="canary", kind="probe")
    with pytest.raises(UserError, match="every arm's"):
        read_template("probe", path)


@pytest.mark.parametrize("name", ["mine.jinja", "mine.txt"])
def test_a_file_that_would_not_be_read_is_named(tmp_path: Path, name: str):
    arm(tmp_path, "x")
    (tmp_path / "prefill" / name).write_text("y")
    with pytest.raises(UserError, match=rf"{name}: only \*\.j2 files are read"):
        load_arms("prefill", str(tmp_path))


def test_an_error_inside_a_block_names_its_line(tmp_path: Path):
    path = tmp_path / "harm.j2"
    path.write_text(
        "---\nversion: 1\n---\n{% block system %}\n\n{{ query.nothing.at_all }}{% endblock %}", encoding="utf-8"
    )
    template = read_template("judge", path)
    assert (template.version, blocks_of(template)) == ("1", ("system",))
    with pytest.raises(UserError, match=r"harm\.j2, line 6: UndefinedError"):
        render(template, {"query": "x"}, "system")


def test_a_block_is_rendered_by_itself(tmp_path: Path):
    path = tmp_path / "harm.j2"
    path.write_text(
        "{% block system %}S {{ nonce }}{% endblock %}{% block user %}U {{ query }}{% endblock %}", encoding="utf-8"
    )
    template = read_template("judge", path)
    values = {"query": "{{ nonce }}", "nonce": "n"}
    assert [render(template, values, b) for b in ("system", "user")] == ["S n", "U {{ nonce }}"]
