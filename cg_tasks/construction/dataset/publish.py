"""Put an assembled data set on the Hugging Face Hub: private unless asked otherwise, in one commit, never by accident."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cg_tasks.construction.dataset.assemble import CARD, PAIRS, PARQUET
from cg_tasks.construction.dataset.manifest import MANIFEST, Manifest, read_manifest
from cg_tasks.errors import UserError
from cg_tasks.judge.keys import masked
from cg_tasks.pair_files import short
from cg_tasks.pair_hub import hub_silence
from cg_tasks.pairs import load_pairs

_FILES = [CARD, PAIRS, "data/*.parquet", "build/*"]
_OURS = ["data/*", "build/*"]
_LONGEST_REASON = 200


def push(out: Path, repo_id: str, *, private: bool = True) -> str:
    """Upload the folder that :func:`cg_tasks.construction.dataset.assemble.assemble` wrote; returns the data set's address.

    The token is that of HF_TOKEN or ``hf auth login``. Only the files that assembling writes go up; earlier ones of ``data/`` and
    ``build/`` that are no longer there are deleted on the Hub.

    Raises:
        UserError: not such a folder, or its pairs were changed since; a bad id; no token; the Hub does not answer or refuses; the
            repository is public where a private one was asked for. The folder stays as it is and can be pushed later.
    """
    manifest = _checked(out)
    later = f"{out} is complete and can be pushed later"
    _check_id(repo_id)
    import huggingface_hub

    token = huggingface_hub.get_token()
    if not token:
        raise UserError(
            f"no Hugging Face token: run `hf auth login`, or set HF_TOKEN to one with write access; {later}"
        )
    if silence := hub_silence():
        raise UserError(f"the Hugging Face Hub cannot be reached ({silence}); {later}")
    api = huggingface_hub.HfApi()
    try:
        address = str(api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True))
        if private and not api.repo_info(repo_id, repo_type="dataset").private:
            raise UserError(
                f"{repo_id} exists on the Hub and is public: make it private there, or ask for a public one; {later}"
            )
        api.upload_folder(
            repo_id=repo_id,
            repo_type="dataset",
            folder_path=out.expanduser(),
            commit_message=f"{manifest.pairs.count} pairs, content {manifest.pairs.content_sha256[:12]}",
            allow_patterns=_FILES,
            delete_patterns=_OURS,
        )
    except UserError:
        raise
    # An HTTP client and the Hub's own checks, whose exceptions differ between huggingface_hub's releases. None of them as a cause: the
    # request in it holds the token.
    except Exception as error:
        raise UserError(f"{masked(_explain(error, repo_id), token)}; {later}") from None
    return address


def _checked(out: Path) -> Manifest:
    """The manifest, where the pairs are those it was written for.

    Raises:
        UserError: they are not, or there is none.
    """
    folder = out.expanduser()
    manifest = read_manifest(folder / MANIFEST)
    for file in (PAIRS, PARQUET):
        if load_pairs(str(folder / file)).sha256 != manifest.pairs.content_sha256:
            raise UserError(f"{out / file}: its pairs are not those of {out / MANIFEST}: assemble the data set again")
    if not (folder / CARD).is_file():
        raise UserError(f"{out / CARD}: the dataset card is missing: assemble the data set again")
    return manifest


def _check_id(repo_id: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo_id)
        fits = re.fullmatch(r"[^/]+/[^/]+", repo_id) is not None
    except HFValidationError:
        fits = False
    if not fits:
        raise UserError(
            f"{short(repo_id, 100)} is no id for the Hub: write OWNER/NAME, of letters, digits, -, _ and . (96 characters at most)"
        )


def _explain(error: Exception, repo_id: str) -> str:
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    said = getattr(error, "server_message", None) or str(error)
    reason = " ".join(str(said).split())[:_LONGEST_REASON].rstrip(".") or type(error).__name__
    if status == 401:
        return "the Hub does not accept the token: make a new one with write access, then `hf auth login` or HF_TOKEN"
    if status in (403, 404):
        owner = repo_id.partition("/")[0]
        return f"the token may not write to {repo_id} (HTTP {status}): take one with write access to {owner}, or another OWNER"
    return f"the Hub refused {repo_id}: {f'HTTP {status}' if status else type(error).__name__}: {reason}"
