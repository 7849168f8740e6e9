"""ConceptGuard's evaluation side: lm-eval tasks, their data, prompts and scores.

This file stays free of imports: ``conceptguard path`` and lm-eval's task listing pass through it.
"""
