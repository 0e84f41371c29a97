"""What people see of a track: tables in the terminal, pictures in files. Each renderer takes a track and adds no facts."""
