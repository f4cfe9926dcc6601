package audit

// CheckCharges makes the checks of an increment.
var CheckCharges = checkCharges
