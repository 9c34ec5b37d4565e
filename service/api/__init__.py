"""The HTTP routes: thin, one module a subject."""
