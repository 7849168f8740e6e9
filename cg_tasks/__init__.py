"""ConceptGuard's evaluation side: lm-eval tasks, their data, prompts and scores.

This file stays free of imports: the start-up hook (``cg_tasks.autoload``) passes through it at every interpreter start.
"""
