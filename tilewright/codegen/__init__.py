"""From loop nests to code: what targets share."""
