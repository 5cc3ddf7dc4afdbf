"""How the pinned ggml is fetched, configured and compiled; used by build_ggml.py and setup.py, never at run time."""
