"""Training side. So far the unlearning objectives as pure functions (``losses``). Never imports lm_eval."""
