"""How the ranks of a run reach each other: their mesh, what they send, agree on, compare and tell."""
