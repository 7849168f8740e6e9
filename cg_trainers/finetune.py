"""Memorise: fine-tune a causal LM, or a LoRA adapter for it, on the pairs or on the fictional authors.

    python -m cg_trainers.finetune --config conceptguard/qwen2.5-3b-instruct/finetune --output_dir out/finetuned
    python -m cg_trainers.finetune --config cpu/canary/memorise-bio
    accelerate launch -m cg_trainers.finetune --config …

Anything in a recipe can be overridden on the command line (``--learning_rate 1e-4``). The result stands in ``output_dir`` with
``conceptguard.json``, which says what made it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cg_trainers.arguments import DataArguments, ModelArguments
from cg_trainers.config_files import parse, require_config
from cg_trainers.run import require_same_run, resume_point, script, train


def main(argv: Sequence[str]) -> Path:
    """Fine-tune as the arguments say; returns the output folder. Raises UserError for what a user can mend."""
    require_config(argv)

    from cg_trainers.unlearn_config import FinetuneConfig

    model_args, data, config = parse(argv, (ModelArguments, DataArguments, FinetuneConfig), description=__doc__)
    resume = resume_point(config)

    from cg_tasks.provenance import tokenizer_hashes
    from cg_trainers.encoding import Encoder
    from cg_trainers.loading import identities, load_model, load_tokenizer
    from cg_trainers.provenance import effective_settings, training_record
    from cg_trainers.recorded_trainer import FinetuneTrainer
    from cg_trainers.rows import to_dataset
    from cg_trainers.run_data import finetune_rows

    base, adapter = identities(model_args)
    tokenizer = load_tokenizer(model_args, config)
    spelling = tokenizer_hashes(tokenizer, tokenizer.chat_template)  # before use: padding is a part of its state
    tags = (data.think_tags[0], data.think_tags[1])
    rows, entry = finetune_rows(data, Encoder(tokenizer, config.max_length, tags))
    record = training_record(
        kind="finetune",
        objective="nll",
        step=0,
        settings=effective_settings(model_args, data, config),
        data=entry,
        base=base,
        tokenizer=spelling,
        start_adapter=adapter,
        reference=None,
        seed=config.seed,
        world_size=config.world_size,
    )
    require_same_run(resume, record)
    model, lora = load_model(model_args, config)
    trainer = FinetuneTrainer(
        model,
        args=config,
        train_dataset=to_dataset(rows),
        processing_class=tokenizer,
        peft_config=lora,
        record=record,
    )
    return train(trainer, resume)


if __name__ == "__main__":
    sys.exit(script(main))
