"""What `lewel bench` runs: speed and memory, side by side with the field's own code."""
