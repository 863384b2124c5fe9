"""Running the collection through trueup's public commands, and scoring what they say."""
