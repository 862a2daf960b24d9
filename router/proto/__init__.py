"""The RouterService protocol and its stubs, made by generate.sh."""
