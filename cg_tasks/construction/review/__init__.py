"""Review of a stage's rows by people who work offline: sheets out, marks in, agreement, disagreements, outcome."""
