"""The other side of comparisons with other people's engines: scripts that run in those engines' environments."""
