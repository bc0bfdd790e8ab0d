"""The engine: many requests at a time on one compiled model. `engine.Engine` is where it begins."""
