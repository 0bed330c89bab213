"""Compression of the key/value cache of language models. `pyramid.engine.compress` is the door for one's own code."""

ENGINE_VERSION = "1"  # raised when the same request, method and model may get another answer
