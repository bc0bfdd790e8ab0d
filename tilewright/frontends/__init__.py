"""Front ends: whatever the user has becomes a `Graph`, of level 2 or of level 3; `protocol` says what one is."""
