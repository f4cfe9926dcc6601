package ledger

// Step is a step of a projector's Run: it returns the pause after it.
var Step = (*Projector).step
