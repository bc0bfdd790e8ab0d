"""Loop nests on the units of a GPU, whatever they become: who runs which statement, and where elements lie."""
