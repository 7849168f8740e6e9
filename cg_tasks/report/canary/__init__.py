"""The canary audit in a report: verdicts, tables and figures of the paper, from a group of results."""
