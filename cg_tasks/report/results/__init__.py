"""What was read from lm-eval's result folders, and which of it may stand side by side."""
