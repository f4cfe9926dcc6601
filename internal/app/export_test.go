package app

// What tests bound by themselves.
const CloseTime = closeTime

// ServeWithin is Serve with a drain time of the test's.
var ServeWithin = serve //nolint:gochecknoglobals // exported to tests only
