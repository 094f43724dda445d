"""The command line: a module per command, with `configure(parser)` and `main(args) -> int`."""
