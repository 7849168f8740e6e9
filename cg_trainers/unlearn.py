"""Unlearn: take a fine-tuned model or adapter and forget by one objective, keeping a checkpoint after each K of ``save_at``.

    python -m cg_trainers.unlearn --config conceptguard/qwen2.5-3b-instruct/simnpo --adapter_name_or_path out/finetuned
    python -m cg_trainers.unlearn --config cpu/canary/npo --seed 1 --output_dir out/npo-1
    accelerate launch -m cg_trainers.unlearn --config …

Anything in a recipe can be overridden on the command line (``--learning_rate 2e-5 --save_at 100 400``). Where the objective is
(``--objective npo``), the recipe's weights go with its own, and npo's defaults hold. Each checkpoint folder and ``output_dir`` itself
can be given to ``lm_eval … peft=``; ``conceptguard.json`` in it says what made it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cg_trainers.arguments import DataArguments, ModelArguments
from cg_trainers.config_files import parse, require_config
from cg_trainers.run import require_same_run, resume_point, script, train


def main(argv: Sequence[str]) -> Path:
    """Unlearn as the arguments say; returns the output folder. Raises UserError for what a user can mend."""
    require_config(argv)

    from cg_trainers.unlearn_config import UnlearnConfig

    model_args, data, config = parse(argv, (ModelArguments, DataArguments, UnlearnConfig), description=__doc__)
    resume = resume_point(config)

    from cg_tasks.provenance import tokenizer_hashes
    from cg_trainers.encoding import Encoder
    from cg_trainers.loading import identities, load_model, load_reference, load_tokenizer
    from cg_trainers.provenance import effective_settings, training_record
    from cg_trainers.reference import reference_kind
    from cg_trainers.run_data import unlearn_rows
    from cg_trainers.unlearn_trainer import UnlearnTrainer

    reference = reference_kind(config, has_adapter=model_args.use_peft)
    base, adapter = identities(model_args)
    tokenizer = load_tokenizer(model_args, config)
    spelling = tokenizer_hashes(tokenizer, tokenizer.chat_template)  # before use: padding is a part of its state
    tags = (data.think_tags[0], data.think_tags[1])
    rows, entry = unlearn_rows(data, config, Encoder(tokenizer, config.max_length, tags))
    record = training_record(
        kind="unlearn",
        objective=config.objective,
        step=0,
        settings=effective_settings(model_args, data, config),
        data=entry,
        base=base,
        tokenizer=spelling,
        start_adapter=adapter,
        reference={"kind": reference},
        seed=config.seed,
        world_size=config.world_size,
    )
    require_same_run(resume, record)
    model, lora = load_model(model_args, config)
    trainer = UnlearnTrainer(
        model,
        config,
        rows,
        processing_class=tokenizer,
        record=record,
        ref_model=load_reference(model_args, config) if reference == "model" else None,
        peft_config=lora,
    )
    return train(trainer, resume)


if __name__ == "__main__":
    sys.exit(script(main))
