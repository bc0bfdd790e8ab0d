"""Reports for people: explain, profile and roofline pages, the check of an installation."""
