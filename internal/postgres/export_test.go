package postgres

// EndHalfSentAfter is EndHalfSent with a patience that a test can bear.
var EndHalfSentAfter = endHalfSentAfter //nolint:gochecknoglobals // exported to tests only
