package fulfillment

// MostUrgent joins the errors of several refunds.
var MostUrgent = mostUrgent
