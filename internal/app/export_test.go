package app

// What tests bound by themselves.
const CloseTime = closeTime

// What tests reach past its constants.
var (
	ServeWithin = serve   //nolint:gochecknoglobals // exported to tests only
	Bounded     = bounded //nolint:gochecknoglobals // exported to tests only
)
