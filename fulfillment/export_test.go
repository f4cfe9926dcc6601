package fulfillment

// Verdict is what tests ask about errors side by side.
var Verdict = verdict
