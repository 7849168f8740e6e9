"""Which servers a stage asks, and what is said where one is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from construction_builds import no_keys
from construction_parts import small_build

from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.servers import known_servers, servers_of
from cg_tasks.errors import UserError

GENERATOR = {"model": "writer", "base_url": "http://h:1/v1"}


@pytest.fixture(autouse=True)
def nobodys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_keys(monkeypatch, tmp_path)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CG_JUDGE_BASE_URL", "http://j:1/v1")
    monkeypatch.setenv("CG_JUDGE_MODEL", "judge-1")


def refused(folder: BuildFolder, stage: str) -> str:
    with pytest.raises(UserError) as caught:
        servers_of(folder, stage, calling=True)
    return str(caught.value)


def test_without_a_generator_nothing_is_called(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build")
    assert refused(folder, "tag").startswith(
        "no generator is configured (neither a key nor a server): set CG_BUILD_API_KEY"
    )
    names = {endpoint: settings.model for endpoint, settings in known_servers(folder).items()}
    assert names == {"generator": "gpt-5", "judge": "gpt-5.4"}  # to look up prices


@pytest.mark.parametrize("stage", ["tag", "queries", "propose"])
def test_only_benign_asks_the_judge(tmp_path: Path, judged: None, stage: str) -> None:
    folder = small_build(tmp_path / "build", generator=GENERATOR)
    assert list(servers_of(folder, stage, calling=True)) == ["generator"]
    servers = servers_of(folder, "benign", calling=True)
    assert [(name, s.model) for name, s in servers.items()] == [("generator", "writer"), ("judge", "judge-1")]
    assert [(name, s.role.prefix) for name, s in servers.items()] == [
        ("generator", "CG_BUILD_"),
        ("judge", "CG_JUDGE_"),
    ]


def test_a_missing_judge_is_said_with_both_ways_out(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build", generator=GENERATOR)
    said = refused(folder, "benign")
    assert said.startswith("no judge is configured") and "CG_JUDGE_API_KEY" in said
    assert f"benign: {{judge: false}} in {tmp_path / 'build' / 'build.yaml'}" in said
    alone = small_build(tmp_path / "alone", generator=GENERATOR, benign={"judge": False})
    assert list(servers_of(alone, "benign", calling=True)) == ["generator"]


def test_where_nothing_is_asked_defaults_stand_in(tmp_path: Path) -> None:
    servers = servers_of(small_build(tmp_path / "build"), "benign", calling=False)
    assert [(name, s.model) for name, s in servers.items()] == [("generator", "gpt-5"), ("judge", "gpt-5.4")]


def test_a_judges_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("model: judge-9\nbase_url: http://j:1/v1\n")
    folder = small_build(tmp_path / "build", generator=GENERATOR)
    assert (
        servers_of(folder, "benign", calling=True, judge_file=str(tmp_path / "mine.yaml"))["judge"].model == "judge-9"
    )


def test_a_bad_setting_is_named_also_where_nothing_is_asked(tmp_path: Path) -> None:
    folder = small_build(tmp_path / "build", generator={**GENERATOR, "concurrency": 0})
    with pytest.raises(UserError, match=r"build\.yaml, line \d+: 'concurrency' is 0"):
        servers_of(folder, "tag", calling=False)
