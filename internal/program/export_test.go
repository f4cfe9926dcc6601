package program

// What tests bound by themselves.
const CloseTime = closeTime

// What tests reach past its constants.
var (
	ServeWithin = serve
	Bounded     = bounded
)
