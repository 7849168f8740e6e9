"""A report's files: the page with its sample browser, tables, figures and numbers."""
