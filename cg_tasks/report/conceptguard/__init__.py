"""The ConceptGuard benchmark in a report: the paper's tables and figures, from a group of results."""
