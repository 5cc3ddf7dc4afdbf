"""Models from the Hugging Face hub and from plain addresses: named, chosen, fetched, kept on disk.

Knows of devices only how many bytes may be taken there. Downloads run in the caller's thread.
"""
