"""From lm-eval's results to tables, figures and one page: ``conceptguard report``."""
