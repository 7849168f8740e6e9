"""Which servers a build asks: the generator, and the harm judge of the evaluation."""

from __future__ import annotations

from cg_tasks.construction.engine.asking import Endpoint
from cg_tasks.construction.folder import BuildFolder
from cg_tasks.construction.settings import generator_settings, no_generator
from cg_tasks.errors import UserError
from cg_tasks.judge.server_settings import ServerSettings
from cg_tasks.judge.settings import NO_JUDGE, SET_ONE, read_judge_settings


def servers_of(
    folder: BuildFolder, stage: str, *, calling: bool, judge_file: str | None = None
) -> dict[Endpoint, ServerSettings]:
    """The servers of one stage. calling: whether any will be called, which needs a key or a server of one's own.

    Raises:
        UserError: a bad setting, or one that is needed is missing.
    """
    generator = generator_settings(folder.path, folder.settings, calling=calling)
    if generator is None:
        raise no_generator(folder.path)
    servers: dict[Endpoint, ServerSettings] = {"generator": generator}
    if stage == "benign" and folder.settings.benign.judge:
        judge = read_judge_settings(judge_file, calling=calling)
        if judge is None:
            raise UserError(
                f"{NO_JUDGE}, and the stage 'benign' has the harm judge read what is written: set {SET_ONE}; or benign: "
                f"{{judge: false}} in {folder.path / 'build.yaml'}, and have people read all of it"
            )
        servers["judge"] = judge
    return servers


def known_servers(folder: BuildFolder, judge_file: str | None = None) -> dict[Endpoint, ServerSettings]:
    """Both, to look up names and prices; nothing is called.

    Raises:
        UserError: a bad setting.
    """
    generator = generator_settings(folder.path, folder.settings, calling=False)
    judge = read_judge_settings(judge_file, calling=False)
    servers: dict[Endpoint, ServerSettings | None] = {"generator": generator, "judge": judge}
    return {endpoint: settings for endpoint, settings in servers.items() if settings is not None}
