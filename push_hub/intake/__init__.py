"""What became of the topics: fetch them, find out what is new, hand it on."""
