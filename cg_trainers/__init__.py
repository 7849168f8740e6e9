"""Training: unlearning objectives, one TRL trainer, recipes. Never imports lm_eval."""
