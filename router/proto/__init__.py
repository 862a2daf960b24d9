"""The RouterService protocol and its generated stubs."""
