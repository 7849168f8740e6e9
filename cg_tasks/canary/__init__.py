"""The canary audit: fictional authors, the trace parser, and the tasks that probe them."""
