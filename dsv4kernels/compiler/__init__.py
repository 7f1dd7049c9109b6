"""The machine code of a launch, for GPUs that need not be here: compile, read, compare."""
