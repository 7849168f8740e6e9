"""LLM judges for HarmScore and HelpScore: settings, rubrics, verdicts, cache, client, and what is done with logged samples."""
