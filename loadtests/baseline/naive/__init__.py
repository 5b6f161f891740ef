"""What people write first."""
