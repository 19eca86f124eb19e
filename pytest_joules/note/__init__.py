"""What a person reads: pure lines made from stored results alone."""
