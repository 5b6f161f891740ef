"""The features that the model sees: one definition, executed offline and online."""
