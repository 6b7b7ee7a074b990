"""What a trained model does: heads, positions, pages about it."""
