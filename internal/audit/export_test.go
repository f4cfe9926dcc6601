package audit

// CheckCharges makes the checks of an increment.
var CheckCharges = checkCharges

// SelectInbox is the statement that reads the messages of charges.
const SelectInbox = selectInbox
