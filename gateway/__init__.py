"""The gRPC front: open calls, validation, chat templates, status codes."""
