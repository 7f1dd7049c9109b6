"""What a launch does, known without timing it: who touches what, waves, bytes, CUDA graphs."""
