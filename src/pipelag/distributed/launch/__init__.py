"""Start and end worker processes, and shape the links between them to emulate several machines on one."""
