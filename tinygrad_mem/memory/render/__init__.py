"""What people see of a track: tables, pictures, pages. Each renderer takes a track and adds no facts."""
