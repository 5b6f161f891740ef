"""Find a sealed decision, explain it, and show it to people."""
