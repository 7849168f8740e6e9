"""A study in one YAML file: models, fine-tuning, unlearning, evaluation, judge and report, as jobs of one workflow."""
