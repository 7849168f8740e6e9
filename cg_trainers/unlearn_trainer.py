"""One trainer for every objective: forget, refusal and retain rows in one forward pass, the loss exact over the whole batch.

Every term is a mean over the tokens or rows of the accumulated batch on all processes: 4 steps of 1 row train as 1 step of 4, two
processes as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import is_peft_model
from torch import Tensor
from transformers import TrainerCallback
from trl.models import prepare_deepspeed, prepare_fsdp

from cg_tasks.errors import UserError
from cg_trainers import losses
from cg_trainers.model_reading import Reader, Reading, decoder_blocks, require_block
from cg_trainers.objectives import SIDES, Side, control_vector
from cg_trainers.paired_rows import PairedRows, StackSides, UnlearnRows
from cg_trainers.precomputed import PrecomputedNll
from cg_trainers.recorded_trainer import RecordedTrainer
from cg_trainers.reference import add_frozen_copy, as_reference, cut_behind, reference_kind, require_trained
from cg_trainers.rows import require_labelled, require_traces, to_dataset
from cg_trainers.trainable import choose_trainable
from cg_trainers.unlearn_config import UnlearnConfig

TOKENS, ROWS = 0, 1


class UnlearnTrainer(RecordedTrainer):
    """Unlearn ``rows`` by ``args.objective`` and keep a checkpoint after each K of ``args.save_at``.

    ``model``: a causal LM, a PEFT model whose adapter is continued, or a causal LM with ``peft_config``.
    ``ref_model``: for ``reference: model`` alone: the same weights, loaded a second time before this is made.

    Raises UserError before the first step: rows without a labelled token, a reference that is not the model the run starts from,
    module patterns that match nothing, an adapter that was never trained, and what :class:`UnlearnConfig` refuses.
    """

    _tag_names = ["trl", "unlearn"]
    _name = "Unlearn"
    # compute_loss divides by the whole accumulated batch itself. None would train harder the more it accumulates.
    loss_is_scaled_for_ga = True  # type: ignore[assignment]

    args: UnlearnConfig
    train_dataset: PairedRows  # type: ignore[assignment]
    data_collator: StackSides  # type: ignore[assignment]

    def __init__(
        self,
        model: Any,
        args: UnlearnConfig,
        rows: UnlearnRows,
        *,
        processing_class: Any,
        record: Mapping[str, Any],
        ref_model: Any = None,
        peft_config: Any = None,
        **kwargs: Any,
    ) -> None:
        self._rows = rows
        paired = PairedRows(rows, args.sides)
        for side in (rows.forget, rows.preferred, rows.retain):
            require_labelled(side)
        if args.objective == "r2mu":
            require_traces(rows.forget)
        continued = is_peft_model(model)
        self.reference = reference_kind(args, continued or peft_config is not None)
        if (ref_model is not None) != (self.reference == "model"):
            raise UserError(
                "ref_model: this run has no use for one"
                if ref_model is not None
                else f"{args.objective} compares with a frozen model here: give ref_model=, loaded from the same weights"
            )
        if continued and self.reference != "none":
            require_trained(model)
        if continued and self.reference == "adapter":
            add_frozen_copy(model)
        if args.spec.reads == "hidden":
            require_block(decoder_blocks(model), args.rmu_block)
        super().__init__(
            model,
            args=args,
            # TRL wants a data set it can look into; what is trained on are the pairs below.
            train_dataset=to_dataset(list(rows.forget)),
            processing_class=processing_class,
            record=record,
            peft_config=peft_config,
            **kwargs,
        )
        choose_trainable(self.model, args)
        self.train_dataset = paired
        self.data_collator = StackSides(args.sides, self._tokenizer.pad_token_id)
        self._reader = Reader(self.model, args.rmu_block, fused=True)
        self._ref_reader = self._prepare_reference(ref_model)
        self._precomputed: PrecomputedNll | None = None
        self._noted: dict[str, int] = {}  # the step that a curve's last value belongs to
        if args.spec.reads == "hidden":
            width = self.model.config.get_text_config().hidden_size
            self._control = control_vector(width, args.weights["steering_coeff"], args.seed)
        self.add_callback(_Begin(self))

    # ------------------------------------------------------------------ before the first step
    def _prepare_reference(self, ref_model: Any) -> Reader | None:
        if ref_model is None:
            return None
        if self.args.compares_with == {"hidden"}:
            cut_behind(ref_model, self.args.rmu_block)
        ref_model.requires_grad_(False)
        ref_model.eval()
        reader = Reader(ref_model, self.args.rmu_block)
        if self.is_deepspeed_enabled:
            ref_model = prepare_deepspeed(ref_model, self.accelerator)
        elif self.is_fsdp_enabled:
            ref_model = prepare_fsdp(ref_model, self.accelerator)
        else:
            ref_model = self.accelerator.prepare_model(ref_model, evaluation_mode=True)
        self.ref_model = ref_model
        return reader

    def begin(self, resumed: bool) -> None:
        """Have the reference ready, and make sure that it is the model this run starts from; called when the model is wrapped."""
        if self.reference == "none" or resumed or self._precomputed is not None:
            return
        if self.reference == "precompute":
            self._precomputed = PrecomputedNll.of(self, self._rows, self.args.spec.sides)
        else:
            self._require_reference_is_start()

    @torch.no_grad()
    def _require_reference_is_start(self) -> None:
        items = [
            self.train_dataset[i] for i in range(min(len(self.train_dataset), self.args.per_device_train_batch_size))
        ]
        batch = self._prepare_inputs(self.data_collator(items))
        reads = {"hidden"} if self.args.compares_with == {"hidden"} else {"nll"}
        self.model.eval()
        with self.compute_loss_context_manager():
            start = self._one(self._reader.read(self.model_wrapped, reads, _model_inputs(batch), batch["labels"]))
            with self._as_reference() as (forward, reader):
                frozen = self._one(reader.read(forward, reads, _model_inputs(batch), batch["labels"]))
        self.model.train()
        apart = (start - frozen).abs().max() / start.abs().max().clamp(min=1e-6)
        # bf16 rounds a second time where an adapter's weights were merged; the un-memorised base is apart by tenths.
        if apart > (0.05 if self.args.bf16 or self.args.fp16 else 1e-3):
            raise UserError(
                f"the reference is not the model this run starts from (apart by {apart:.2g} of its values at step 0): "
                "an adapter that is continued needs a reference with that adapter: reference: auto"
            )

    @staticmethod
    def _one(reading: Reading) -> Tensor:
        value = reading.hidden if reading.nll is None else reading.nll
        assert value is not None
        return value.float()

    def reading(self, batch: Mapping[str, Tensor]) -> Reading:
        """The NLL of a batch under the policy as it stands."""
        return self._reader.read(self.model_wrapped, {"nll"}, _model_inputs(batch), batch["labels"])

    # ------------------------------------------------------------------ the loss
    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["index", *SIDES]  # type: ignore[assignment]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | None:
        """Labelled tokens and rows of each side over the accumulated batch on all processes: [sides, 2]."""
        if not batch_samples:
            return None
        counts = torch.stack([self._counts(batch["labels"]) for batch in batch_samples]).sum(dim=0).to(device)
        if self.args.world_size > 1:
            counts = self.accelerator.gather(counts[None]).sum(dim=0)
        return counts

    def _counts(self, labels: Tensor) -> Tensor:
        sides = losses.shifted(labels)[0].chunk(len(self.args.sides))
        return torch.tensor([[int(side.sum()), len(side)] for side in sides])

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """``gamma * forget + alpha * retain`` of this process's rows, as its share of the whole batch."""
        local = self._counts(inputs["labels"])
        total = local if num_items_in_batch is None else num_items_in_batch.cpu()
        sides = self._read(model, inputs)
        args, names = self.args, self.args.sides
        # DDP averages gradients over processes; `total` counts the rows of all.
        scale = self.accelerator.num_processes

        def share(side: str, unit: str) -> float:
            column = TOKENS if unit == "tokens" else ROWS
            at = names.index(side)
            return scale * local[at, column].item() / total[at, column].item()

        forget = args.spec.forget(sides, args.weights) * share(args.spec.sides[0], args.spec.unit)
        loss = args.weights["gamma"] * forget
        self._note("forget_loss", forget)
        if args.retain_spec:
            retain = args.retain_spec.loss(sides["retain"]) * share("retain", args.retain_spec.unit)
            loss = loss + args.weights["alpha"] * retain
            self._note("retain_loss", retain)
        for at, name in enumerate(names):
            self._note(f"{name}_tokens", local[at, TOKENS] * scale)
        self._note_activations(sides, share(args.spec.sides[0], "rows"))
        self._total_train_tokens += int(inputs["attention_mask"].sum())  # this process's
        return (loss, {}) if return_outputs else loss

    def _read(self, model: Any, inputs: Mapping[str, Tensor]) -> dict[str, Side]:
        labels, names, args = inputs["labels"], self.args.sides, self.args
        retain = args.retain_spec
        wanted = {args.spec.reads} | ({retain.reads} if retain else set())
        policy = self._reader.read(model, wanted, _model_inputs(inputs), labels)
        sides = self._split(policy, labels, inputs["trace"], names)
        if self._precomputed is not None:
            for name in args.spec.sides:
                sides[name].ref_nll = self._precomputed.nll(name, inputs["index"]).to(labels.device)
        elif self.reference != "none":
            self._read_reference(sides, inputs)
        if args.spec.reads == "hidden":
            sides["forget"].control = self._control.to(labels.device)
        return sides

    def _read_reference(self, sides: dict[str, Side], inputs: Mapping[str, Tensor]) -> None:
        """Only the sides that are compared go through the frozen model."""
        retain = self.args.retain_spec
        wanted = {name: self.args.spec.reference for name in self.args.spec.sides if self.args.spec.reference}
        if retain and retain.reference:
            wanted["retain"] = retain.reference
        with self._as_reference() as (forward, reader):
            for at, name in enumerate(self.args.sides):
                if name not in wanted:
                    continue
                part = {k: inputs[k].chunk(len(self.args.sides))[at] for k in ("input_ids", "attention_mask", "labels")}
                reading = reader.read(forward, {wanted[name]}, _model_inputs(part), part["labels"])
                sides[name].ref_nll = None if reading.nll is None else reading.nll.sum(dim=1)
                sides[name].ref_logits, sides[name].ref_hidden = reading.logits, reading.hidden

    @contextmanager
    def _as_reference(self) -> Iterator[tuple[Any, Reader]]:
        if self._ref_reader is not None:
            with torch.no_grad():
                yield self.ref_model, self._ref_reader
            return
        with as_reference(self.accelerator.unwrap_model(self.model)):
            yield self.model_wrapped, self._reader

    @staticmethod
    def _split(reading: Reading, labels: Tensor, trace: Tensor, names: tuple[str, ...]) -> dict[str, Side]:
        n = len(names)
        parts = labels.chunk(n)
        tokens = [int(losses.shifted(part)[0].sum()) for part in parts]
        nll = reading.nll.chunk(n) if reading.nll is not None else [None] * n
        logits = reading.logits.split(tokens) if reading.logits is not None else [None] * n
        hidden = reading.hidden.chunk(n) if reading.hidden is not None else [None] * n
        return {
            name: Side(parts[i], trace.chunk(n)[i], nll=nll[i], logits=logits[i], hidden=hidden[i])
            for i, name in enumerate(names)
        }

    # ------------------------------------------------------------------ curves
    def _note(self, name: str, value: Tensor) -> None:
        """Add one micro-batch's share to the optimiser step's value; :meth:`log` takes the mean over steps, as of the loss."""
        values = self._metrics["train"][name]
        if values and self._noted.get(name) == self.state.global_step:
            values[-1] += float(value.detach())
        else:
            values.append(float(value.detach()))
            self._noted[name] = self.state.global_step

    def _note_activations(self, sides: Mapping[str, Side], share: float) -> None:
        """Length of the forget rows' hidden states and their cosine with the control vector, by row as the loss is."""
        hidden, control = sides[self.args.spec.sides[0]].hidden, sides[self.args.spec.sides[0]].control
        if hidden is None or control is None:
            return
        with torch.no_grad():
            mask = sides["forget"].labelled
            for name, values in (
                ("forget_activation_norm", hidden.float().norm(dim=-1)),
                ("forget_control_cosine", F.cosine_similarity(hidden.float(), control.float(), dim=-1)),
            ):
                by_row = (values * mask).sum(dim=1) / mask.sum(dim=1)
                self._note(name, by_row.mean() * share)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Every curve over all processes; called on each."""
        metrics = self._metrics["train"]
        names = sorted(metrics)
        if names and self.args.world_size > 1:
            local = torch.tensor([sum(metrics[n]) / len(metrics[n]) for n in names], device=self.args.device)
            for name, value in zip(names, self.accelerator.gather(local[None]).mean(dim=0).tolist(), strict=True):
                metrics[name] = [value]
        if names:
            tokens = torch.tensor([self._total_train_tokens], device=self.args.device)
            metrics["num_tokens"] = [int(self.accelerator.gather(tokens).sum())]
        super().log(logs, start_time)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: a pair is not a document. Raises UserError."""
        raise UserError("an unlearning run has no evaluate(): evaluate a checkpoint with lm_eval … peft=CHECKPOINT")

    # ------------------------------------------------------------------ resume
    def save_extra(self, folder: Path) -> None:
        """The precomputed reference: a resumed run could not make it again."""
        if self._precomputed is not None and self.args.should_save:
            self._precomputed.save(folder)

    def load_extra(self, folder: Path) -> None:
        """The precomputed reference of the run that is resumed."""
        if self.reference == "precompute":
            self._precomputed = PrecomputedNll.load(folder, self._rows, self.args.spec.sides)


class _Begin(TrainerCallback):
    """The trainer's part of the events that transformers tells callbacks alone."""

    def __init__(self, trainer: UnlearnTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.begin(resumed=state.global_step > 0)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Not left to the data loader: accelerate's forwards the epoch to a data set on one process only.
        self._trainer.train_dataset.epoch = int((state.epoch or 0) + 1e-6)


def _model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: batch[name] for name in ("input_ids", "attention_mask")}
