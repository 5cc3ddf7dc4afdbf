"""The formats in which families of models write reasoning and calls of tools."""
