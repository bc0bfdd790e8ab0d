"""The chips of the package, one file each: a subclass of `targets.accelerator.Chip` called ``CHIP``."""
