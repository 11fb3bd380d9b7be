"""What the user types: one function a command, which imports what it needs when it is called."""
