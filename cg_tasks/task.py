"""What every task of this project shares: settings, late-bound requests, metrics with intervals, and provenance.

The YAML says what is measured; this class makes lm-eval 0.4.13 take it. Each workaround names the reason it exists.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_aggregation
from lm_eval.api.task import ConfigurableTask

from cg_tasks import requests
from cg_tasks.binding import PromptSpec
from cg_tasks.errors import UserError, show_user_errors_in_one_line
from cg_tasks.metrics import Scored, aggregations, interval, with_intervals
from cg_tasks.provenance import adapter_provenance, check_adapter, model_provenance, package_versions, sha256_of
from cg_tasks.requests import CG_GENERATE
from cg_tasks.settings import Settings, read_settings
from cg_tasks.templates import Template, template_hashes

logger = logging.getLogger(__name__)

ARM = "<arm>"
# What lm-eval's tasks take from a YAML and these, which build prompts and scores themselves, would pass over in silence.
_WITHOUT_EFFECT = (
    "dataset_path",
    "dataset_name",
    "custom_dataset",
    "doc_to_text",
    "doc_to_target",
    "doc_to_choice",
    "description",
    "gen_prefix",
    "process_results",
    "filter_list",
)

requests.install()


@register_aggregation("clustered_mean")
def clustered_mean(values: Sequence[Any]) -> float:
    """Mean over documents; its interval is bootstrapped over clusters (authors or pairs)."""
    return interval(values).mean


@register_aggregation("clustered_geometric_mean")
def clustered_geometric_mean(values: Sequence[Any]) -> float:
    """Geometric mean over documents (perplexities); its interval is bootstrapped over clusters."""
    return interval(values, geometric=True).mean


def scored_by_the_task(doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
    """Stands in the configuration only so that lm-eval does not look our metric names up on the Hub.

    Raises:
        UserError: always; :meth:`CgTask.process_results` does the scoring.
    """
    raise UserError("this task scores its documents itself: use its class, not its process_results function")


class CgTask(ConfigurableTask):
    """A task whose prompts are built inside the model's method and whose metrics carry clustered intervals.

    Subclasses give the abstract methods and, where they use templates, set ``self.templates``
    and ``self.arms`` in :meth:`prepare`.

    Raises:
        UserError: a bad setting, data file or template; before any model is loaded when lm-eval found the task by our hook.
    """

    REQUEST: ClassVar[str] = CG_GENERATE

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        show_user_errors_in_one_line()
        config = dict(config or {})
        config.pop("class", None)  # lm-eval leaves it in, and its TaskConfig refuses it
        refuse_keys_without_effect(config)
        config["process_results"] = scored_by_the_task
        self.settings: Settings = read_settings(config.get("metadata"))
        self.split = str(config.get("test_split") or "test")
        self.own_metadata: dict[str, Any] = dict(config.get("metadata") or {})
        self.check_weights()
        self.templates: list[Template] = []
        self.arms: tuple[str, ...] = ()
        self.prepare()
        config["metric_list"] = expand_arms(config.get("metric_list") or [], self.arms, str(config.get("task")))
        super().__init__(config=config)
        # lm-eval pads requests across ranks per OUTPUT_TYPE, and dispatches by request type: they must be one name.
        self.OUTPUT_TYPE = self.REQUEST  # type: ignore[assignment]
        self._use_clustered_aggregations()
        self._chat_flag, self._system = False, None
        if name := self.data_label():
            self._config.task_alias = f"{self._config.task} ({name})"

    # ------------------------------------------------------------ for subclasses
    def prepare(self) -> None:
        """Load data and templates; runs before the configuration is built."""

    def check_weights(self) -> None:
        """Refuse an adapter or model folder that is damaged or half-written, before it is loaded."""
        check_adapter(self.own_metadata.get("peft"))
        self.trained_model = model_provenance(self.own_metadata.get("pretrained"))

    @abstractmethod
    def documents(self) -> list[dict[str, str]]:
        """The documents, flat and model-independent, in evaluation order."""

    @abstractmethod
    def specs(self, doc: Mapping[str, Any]) -> list[PromptSpec]:
        """The prompts of one document, in a fixed order."""

    def scored_response(self, response: Any) -> Any:
        """What is scored of a response, and stands in the samples log as ``filtered_resps``; the raw one stays in ``resps``."""
        return response

    @abstractmethod
    def score(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Scored]:
        """The metrics of one document; the same keys for every document, NaN where a value does not exist."""

    @abstractmethod
    def data_provenance(self) -> dict[str, Any]:
        """Name and content hash of the data."""

    def data_label(self) -> str | None:
        """A name that stands behind the task's in every table, where the data are not the benchmark's own."""
        return None

    # ------------------------------------------------------------ what lm-eval calls
    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.dataset = {self.split: datasets.Dataset.from_list(self.documents())}

    def doc_to_text(self, doc: Mapping[str, Any], *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        return str(doc["query"])

    def doc_to_target(self, doc: Mapping[str, Any], *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        return str(doc["target"])

    def fewshot_context(self, doc: Any, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        return ""  # the text is built later, by the model's own tokenizer

    def build_all_requests(self, **kwargs: Any) -> None:  # type: ignore[override]
        check_generation_kwargs(self.config.generation_kwargs or {})
        self._chat_flag = bool(kwargs.get("apply_chat_template"))
        self._system = kwargs.get("system_instruction")
        # lm-eval's request cache is keyed by task and rank only; data, settings, samples and generation must be in it.
        fingerprint = sha256_of(
            [
                self.data_provenance(),
                self.settings.as_json(),
                template_hashes(self.templates),
                self.config.generation_kwargs,
                kwargs.get("samples"),
                self._chat_flag,
                self._system,
                str(self.VERSION),
                package_versions(),
            ]
        )
        kwargs["tokenizer_name"] = f"cg{fingerprint[:16]}"
        super().build_all_requests(**kwargs)

    def construct_requests(self, doc: Any, ctx: Any, **kwargs: Any) -> list[Instance]:  # type: ignore[override]
        kwargs.pop("apply_chat_template", None)
        kwargs.pop("chat_template", None)
        common: PromptSpec = {
            "id": str(doc["id"]),
            "chat": self.settings.chat,
            "chat_flag": self._chat_flag,
            "system": self._system,
            "think_tags": self.settings.think_tags,
        }
        out = []
        for idx, spec in enumerate(self.specs(doc)):
            full = {**common, **spec}
            middle = (dict(self.config.generation_kwargs),) if self.REQUEST == CG_GENERATE else ()
            out.append(
                Instance(
                    request_type=self.REQUEST,  # type: ignore[arg-type]
                    doc=doc,
                    arguments=(self.doc_to_text(doc), *middle, full),
                    idx=idx,
                    **kwargs,
                )
            )
        return out

    def apply_filters(self) -> Any:  # type: ignore[override]
        for instance in self._instances or []:
            # lm-eval evens out the ranks by running the last request again: those answers are nobody's.
            del instance.resps[instance.repeats :]
        super().apply_filters()
        for instance in self._instances or []:
            for key, response in instance.filtered_resps.items():
                instance.filtered_resps[key] = self.scored_response(response)

    def process_results(self, doc: Any, results: Sequence[Any]) -> dict[str, Any]:  # type: ignore[override]
        if "bypass" in self._metric_fn_list:  # --predict_only
            return {"bypass": 999}
        scores = self.score(doc, results)
        wanted = self.metric_names
        if unknown := [m for m in wanted if m not in scores]:
            raise UserError(
                f"task {self._config.task}: unknown metric '{unknown[0]}' in metric_list (known: {', '.join(sorted(scores))})"
            )
        return with_intervals({m: scores[m] for m in wanted})

    def dump_config(self) -> dict[str, Any]:
        """The configuration with our provenance beside it; lm-eval writes it into every results file."""
        config = super().dump_config()
        config["metadata"] = {**(config.get("metadata") or {}), "provenance": self.provenance()}
        return config

    # ------------------------------------------------------------ ours
    @property
    def metric_names(self) -> list[str]:
        """The metrics the YAML lists, arms filled in."""
        return [m["metric"] for m in self.config.metric_list or []]

    def provenance(self) -> dict[str, Any]:
        """Data, settings, templates, records of the weights, versions and, after a run, the tokenizer and chat template used."""
        return {
            "data": self.data_provenance(),
            "settings": self.settings.as_json(),
            "templates_sha256": template_hashes(self.templates),
            "arms_shown_the_canary": [t.arm for t in self.templates if t.uses_canary],
            "adapter": adapter_provenance(self.own_metadata.get("peft")),
            "trained_model": self.trained_model,
            "versions": package_versions(),
            "model": self._made_with(),
        }

    def _made_with(self) -> dict[str, Any] | None:
        first = (self._instances or [None])[0]
        return getattr(first.resps[0], "made_with", None) if first is not None and first.resps else None

    def _use_clustered_aggregations(self) -> None:
        for metric in self.config.metric_list or []:
            geometric = metric.get("aggregation") == "clustered_geometric_mean"
            self._aggregation_list.update(aggregations(metric["metric"], seed=self.settings.seed, geometric=geometric))


def expand_arms(metric_list: Sequence[Mapping[str, Any]], arms: Sequence[str], task: str) -> list[dict[str, Any]]:
    """The YAML's metrics with ``<arm>`` filled in for every arm, in order.

    Raises:
        UserError: a metric without an aggregation of ours.
    """
    out = []
    for entry in metric_list:
        if entry.get("aggregation") not in ("clustered_mean", "clustered_geometric_mean"):
            raise UserError(
                f"task {task}: metric '{entry.get('metric')}' needs 'aggregation: clustered_mean' or 'clustered_geometric_mean'"
            )
        names = [entry["metric"].replace(ARM, arm) for arm in arms] if ARM in entry["metric"] else [entry["metric"]]
        out += [{**entry, "metric": name} for name in names]
    return out


def refuse_keys_without_effect(config: Mapping[str, Any]) -> None:
    """Refuse a YAML's key that would not change what is measured.

    Raises:
        UserError: one of lm-eval's keys that this project replaces, or few-shot examples.
    """
    given = [key for key in _WITHOUT_EFFECT if config.get(key) not in (None, "", scored_by_the_task)]
    if config.get("num_fewshot"):
        given.append("num_fewshot")
    if given:
        raise UserError(
            f"task {config.get('task')}: '{given[0]}' in its YAML has no effect on this task: leave it out "
            "(data come from --metadata, words from templates; there are no few-shot examples)"
        )


def check_generation_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Refuse what lm-eval would let pass without effect.

    Raises:
        UserError: another name for ``max_gen_toks`` (the YAML's value would win), or a length that is not positive.
    """
    if other := [k for k in ("max_new_tokens", "max_tokens", "max_completion_tokens", "max_length") if k in kwargs]:
        raise UserError(f"--gen_kwargs {other[0]}=… would be ignored beside the task's own length: use max_gen_toks=…")
    length = kwargs.get("max_gen_toks", 1)
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise UserError(f"--gen_kwargs max_gen_toks is {length!r}: it must be a positive whole number")
