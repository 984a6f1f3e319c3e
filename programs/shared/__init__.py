"""What the programs share: their data, their tools, how they are graded and reported."""
