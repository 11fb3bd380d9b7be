"""`lewel bench`: speed and memory, compared with torchvision and lightly."""
