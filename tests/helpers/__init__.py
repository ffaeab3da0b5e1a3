"""What tests share: sample projects, actions on them, and servers that play the outside world."""
