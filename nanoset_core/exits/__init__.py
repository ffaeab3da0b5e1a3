"""Files for readers that take the tokens of a dataset as they are: datatrove's, OLMo-core's."""
