"""What every room may use: options, errors, element types, files, memory, processes; none of it knows a compiler."""
