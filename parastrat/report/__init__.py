"""Values to text and to JSON tables. Nothing is printed here, and nothing asks what the terminal is."""
