"""The command `pyggml`. Nothing heavy is imported before a command has settled its options."""
