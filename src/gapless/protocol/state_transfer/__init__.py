"""State transfer: a new member gets the application's state and exactly the later messages."""
