package worker

// Route is what tests ask who takes a message.
var Route = route //nolint:gochecknoglobals // exported to tests only
