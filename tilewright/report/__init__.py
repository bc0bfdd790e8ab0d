"""What a person can read about a model or an installation."""
