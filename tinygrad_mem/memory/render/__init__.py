"""Tables, pictures and pages of a track. Each renderer takes a track and adds no facts."""
