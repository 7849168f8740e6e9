"""Pushing to the Hub: what goes up, what never does, and what is said where it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from assembling import assembled
from hub_server import Hub, hub_server

from cg_tasks.construction.dataset.publish import push
from cg_tasks.errors import UserError

TOKEN = "hf_notatokenbutlongenough"
UPLOADED = {
    "README.md",
    "build/dropped.csv",
    "build/manifest.json",
    "build/statistics.md",
    "data/train-00000-of-00001.parquet",
    "pairs.jsonl",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with hub_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def out(tmp_path: Path) -> Path:
    assembled(tmp_path / "set")
    return tmp_path / "set"


def refused(out: Path, repo_id: str = "me/sigils", *, private: bool = True) -> str:
    with pytest.raises(UserError) as error:
        push(out, repo_id, private=private)
    message = str(error.value)
    assert "\n" not in message and TOKEN not in message and error.value.__cause__ is None
    return message


def test_everything_in_one_private_commit(hub: Hub, out: Path):
    (out / "notes.txt").write_text("not for the Hub")
    (out / ".env").write_text("not for the Hub")
    hub.files = ["README.md", "build/agreement_tag.md", "mine.txt"]
    address = push(out, "me/sigils")
    assert address == f"{hub.url}/datasets/me/sigils"
    (created,) = hub.created
    assert (created["name"], created["organization"], created["type"]) == ("sigils", "me", "dataset")
    assert created.get("private") is True or created.get("visibility") == "private"
    (commit,) = hub.commits
    assert {name for name, body in commit.items() if body is not None} == UPLOADED
    assert {name for name, body in commit.items() if body is None} == {"build/agreement_tag.md"}
    assert all(commit[name] == (out / name).read_bytes() for name in UPLOADED)
    sha = json.loads((out / "build" / "manifest.json").read_text())["pairs"]["content_sha256"]
    assert hub.messages == [f"12 pairs, content {sha[:12]}"]
    assert f"Bearer {TOKEN}" in hub.tokens


def test_public_only_when_asked(hub: Hub, out: Path):
    hub.private = False
    message = refused(out)
    assert "me/sigils exists on the Hub and is public" in message and "can be pushed later" in message
    assert hub.commits == []
    push(out, "me/sigils", private=False)
    assert hub.created[-1].get("private") is False or hub.created[-1].get("visibility") == "public"
    assert len(hub.commits) == 1


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("/repos/create", 401, "does not accept the token"),
        ("/commit/main", 403, "may not write to me/sigils (HTTP 403)"),
        ("/commit/main", 422, "the Hub refused me/sigils: HTTP 422: it says ***"),
        ("/validate-yaml", 400, "the Hub refused me/sigils: ValueError: Invalid metadata in README.md. - it says ***"),
    ],
)
def test_the_hub_refuses(hub: Hub, out: Path, end: str, status: int, says: str):
    hub.refuse[end] = status, f"it says {TOKEN}"
    if status == 401:
        hub.refuse["/datasets/me/sigils"] = status, "who is it?"
    message = refused(out)
    assert says in message and f"{out} is complete and can be pushed later" in message
    assert hub.commits == []


def test_without_a_token(hub: Hub, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-login"))
    message = refused(out)
    assert "no Hugging Face token" in message and "hf auth login" in message and "can be pushed later" in message
    assert hub.created == []


def test_the_hub_does_not_answer(hub: Hub, out: Path, monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import constants

    hub.refuse[""] = 503, "down"
    assert "cannot be reached (HTTP 503)" in refused(out)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "cannot be reached (offline mode is set)" in refused(out)
    assert hub.created == []


@pytest.mark.parametrize("repo_id", ["sigils", "me/sigils/x", "me/ sigils", "", "me/", "me/a--b", "me/" + "a" * 97])
def test_a_bad_id(hub: Hub, out: Path, repo_id: str):
    assert "is no id for the Hub: write OWNER/NAME" in refused(out, repo_id)
    assert hub.created == []


def test_what_is_not_as_it_was_assembled(hub: Hub, out: Path, tmp_path: Path):
    assert "no such file: name a folder that" in refused(tmp_path)
    pairs = (out / "pairs.jsonl").read_text()
    (out / "pairs.jsonl").write_text("".join(pairs.splitlines(keepends=True)[1:]))
    assert f"{out / 'pairs.jsonl'}: its pairs are not those of" in refused(out)
    (out / "pairs.jsonl").write_text(pairs)
    (out / "README.md").unlink()
    assert "dataset card is missing" in refused(out)
    assert hub.created == hub.commits == []


def test_a_parquet_file_of_other_pairs(hub: Hub, out: Path, tmp_path: Path):
    assembled(tmp_path / "other", count=3)
    parquet = Path("data") / "train-00000-of-00001.parquet"
    (out / parquet).write_bytes((tmp_path / "other" / parquet).read_bytes())
    assert f"{out / parquet}: its pairs are not those of" in refused(out)
    assert hub.created == []
