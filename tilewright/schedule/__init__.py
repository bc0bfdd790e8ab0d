"""Level 4: loop nests, the schedule that transforms them, and the rules that write default schedules."""
