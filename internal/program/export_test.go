package program

// What tests reach past its constants.
var (
	ServeWithin = serve
	Bounded     = bounded
)
