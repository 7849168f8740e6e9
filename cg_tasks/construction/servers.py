"""Which servers a build asks: the generator, and the harm judge of the evaluation."""

from __future__ import annotations

import logging

from cg_tasks.construction.engine.asking import Endpoint
from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.settings import GeneratorSettings, generator_settings, no_generator
from cg_tasks.errors import UserError
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.judge.settings import NO_JUDGE, SET_ONE, JudgeSettings, read_judge_settings

logger = logging.getLogger(__name__)


def servers_of(
    folder: BuildFolder, stage: str, *, asking: bool, judge_file: str | None = None
) -> dict[Endpoint, ServerSettings]:
    """The servers of one stage. asking: whether any will be called; if not, defaults stand in for what is not configured.

    Raises:
        UserError: a bad setting, or one that is needed is missing.
    """
    found = known_servers(folder, judge_file)
    servers: dict[Endpoint, ServerSettings] = {}
    if "generator" not in found and asking:
        raise no_generator(folder.path)
    servers["generator"] = found.get("generator") or GeneratorSettings.model_validate({})
    if stage == "benign" and folder.settings.benign.judge:
        if "judge" not in found and asking:
            raise UserError(
                f"{NO_JUDGE}, and the stage 'benign' has the harm judge read what is written: set {SET_ONE}; or benign: "
                f"{{judge: false}} in {folder.path / 'build.yaml'}, and have people read all of it"
            )
        judge = read_judge_settings(judge_file) or JudgeSettings.model_validate({})
        if judge.templates:
            logger.warning(
                "the harm check reads judge/harm.j2 from the build's own templates (build.yaml), not from %s",
                judge.templates,
            )
        servers["judge"] = judge
    return servers


def known_servers(folder: BuildFolder, judge_file: str | None = None) -> dict[Endpoint, ServerSettings]:
    """Those that are configured.

    Raises:
        UserError: a bad setting.
    """
    servers: dict[Endpoint, ServerSettings] = {}
    if generator := generator_settings(folder.path, folder.settings):
        servers["generator"] = generator
    if judge := read_judge_settings(judge_file):
        servers["judge"] = judge
    return servers
